#!/usr/bin/env bash
# kernelrl problems: filters, labels, and the check that finds problems which reward the wrong thing.
. "$(dirname "$0")/tap.bash"
problems=("$KRL" problems)
count() { "${problems[@]}" list --json --source builtin "$@" | wc -l; }
check "filters are those of the list" test "$(count)" = "$(($(count --split test) + $(count --split train)))"
check "levels too" test "$(count)" = "$(($(count --level 1) + $(count --level 2) + $(count --level 3)))"
check "an operator" test "$(count --ops gelu --level 1)" = 1
check "several filters" test "$(count --level 2 --ops gelu --split test --difficulty 2)" = 3
refuses "a split that is none" 2 'split: expected train or test' "${problems[@]}" list --split valid

bad=$tmp/level1
mkdir "$bad"
module() { # ID_NAME FORWARD [INPUTS]
    printf 'import torch\nimport torch.nn as nn\nclass Model(nn.Module):\n    def forward(self, x):\n        %s\n\ndef get_inputs():\n    return [%s]\n\ndef get_init_inputs():\n    return []\n' \
        "$2" "${3:-torch.randn(8, 16)}" >"$bad/$1.py"
}
module 1_Good 'return torch.relu(x)'
module 2_Random 'return x + torch.rand_like(x)'
module 3_Constant 'return torch.ones_like(x)'
module 4_Blind 'return torch.softmax(x, dim=1).sum(dim=1) * torch.arange(8.0)'
module 5_Small 'return x * 1e-6'
module 6_NaN 'return torch.log(-torch.abs(x))'
module 7_Broken 'return x @ x'
module 8_Hangs 'while True: pass'
module 9_Dies 'import os; os._exit(3)'
"${problems[@]}" check --source "$tmp" --timeout 5 >"$tmp/said" 2>"$tmp/errors"
code=$?
cp "$tmp/said" "$tmp/out"
check "exit status 1 when there is something" test $code = 1
check "nothing is said of a good one" sh -c "! grep -q 1_Good '$tmp/said'"
finds() { check "finds $2" grep -qE "^level1/$1 +$2( |$)" "$tmp/said"; }
finds 2_Random random
finds 3_Constant constant
finds 3_Constant input_blind
finds 4_Blind input_blind
finds 5_Small below_tolerance
finds 6_NaN not_finite
finds 7_Broken error
finds 8_Hangs 'error +takes longer than 5 s'
finds 9_Dies 'error +its process died'
check "and sums up" grep -q '^9 problems, 8 with findings' "$tmp/said"
check "one that is good" "${problems[@]}" check 1_Good --source "$tmp"
refuses "a slip of the finger" 1 'did you mean level1/1_ReLU' "${problems[@]}" show level1/1_Relu --source builtin
refuses "one that is not there" 1 'no such problem' "${problems[@]}" check 10_None --source "$tmp"
check "the built-in test problems of level 2" "${problems[@]}" check --source builtin --level 2 --split test
printf "#!/bin/sh\nexit 3\n" >"$tmp/python" && chmod +x "$tmp/python"
refuses "no torch" 1 "PyTorch .tried" env KERNELRL_PYTHON="$tmp/python" "${problems[@]}" check 1_Good --source "$tmp"
label() { "${problems[@]}" label "$@" | grep -o '"key":"[^"]*"\|"difficulty":[0-9]' | cut -d: -f2 | paste -sd' '; }
"${problems[@]}" show level3/2_Linear_GELU_Linear --source builtin >"$tmp/2_MLP.py"
check "a label by its text" test "$(label --source "$tmp/2_MLP.py" | cut -d' ' -f2)" = 3
check "by its operators" test "$(label --by operators --source "$tmp/2_MLP.py" | cut -d' ' -f2)" = 2
rm "$bad"/[6-9]_* # what does not run
module 1_Good 'return torch.relu(x)' 'torch.randn(2000, 2000)'
check "by measured cost, into a file" "${problems[@]}" label --by cost --source "$tmp" --out "$tmp/labels.jsonl"
check "the largest one costs most" grep -q '"key":"level1/1_Good".*"difficulty":3' "$tmp/labels.jsonl"
check "labels of those named" test "$(label level1/1_ReLU level2/34_Linear_GELU --source builtin | cut -d' ' -f1,3 | tr -d '"')" = \
    "level1/1_ReLU level2/34_Linear_GELU"
refuses "an option that there is not" 2 'unknown flag --bogus' "${problems[@]}" list --bogus
refuses "a command that there is not" 2 'unknown command "lable"; did you mean "label"' "${problems[@]}" lable
refuses "no command" 2 'expected list, show, prompt, export, check, label or generate' "${problems[@]}"
refuses "a way that is none" 2 'by: expected text' "${problems[@]}" label --by taste
refuses "an option of another command" 2 'problems: --count means nothing to list; it is for generate' "${problems[@]}" list --count 3

# Problems of the generator's stream by the keys that runs have for them.
"${problems[@]}" generate --seed 1000000 --first 62 --count 2 >"$tmp/stream.jsonl"
same_again() { # KEY: what `show` prints is the code of that row
    "${problems[@]}" show "$1" --source builtin >"$tmp/shown" && python3 - "$tmp" "$1" <<'PY'
import json, sys
rows = {r["key"]: r["code"] for r in map(json.loads, open(sys.argv[1] + "/stream.jsonl"))}
assert rows[sys.argv[2]] == open(sys.argv[1] + "/shown").read()
PY
}
check "show generated/SEED_INDEX" same_again generated/1000000_62
check "and the next one" same_again generated/1000000_63
larger() { # KEY FACTOR: the batch of KEY@FACTOR is FACTOR times as large, and nothing else differs
    "${problems[@]}" show "$1" --source builtin >"$tmp/small" && "${problems[@]}" show "$1@$2" --source builtin >"$tmp/large" &&
        python3 - "$tmp" "$2" <<'PY'
import re, sys
small, large = (open(sys.argv[1] + "/" + name).read() for name in ("small", "large"))
line = re.compile(r"^(batch_size|batch|num_rows) = (\d+)$", re.M)
assert int(line.search(large)[2]) == int(sys.argv[2]) * int(line.search(small)[2])
assert line.sub("", small) == line.sub("", large)
PY
}
check "KEY@FACTOR of a built-in problem" larger level1/1_ReLU 64
check "of a generated one" larger generated/1000000_62 8
check "check takes such a key" "${problems[@]}" check generated/1000000_62 --source builtin
refuses "half a key" 1 'generated/62: expected generated/SEED_INDEX' "${problems[@]}" show generated/62
refuses "a number with a zero in front" 1 'expected generated/SEED_INDEX' "${problems[@]}" show generated/1000000_062
refuses "a factor in a source of one's own" 1 'KEY@FACTOR is for built-in and generated problems' \
    "${problems[@]}" show 1_Good@4 --source "$tmp"
refuses "a proposal of a run" 1 'not made again by its key' "${problems[@]}" show composed/1_Linear --source builtin

# Prompts, and sets of them for other programs.
"${problems[@]}" prompt level1/1_ReLU source=builtin >"$tmp/prompt"
check "a prompt as text" sh -c "grep -q '^\[user\]' '$tmp/prompt' && grep -q '^void kernel(const float' '$tmp/prompt'"
"${problems[@]}" prompt level1/1_ReLU source=builtin prompt_option=one_shot --json >"$tmp/prompt.json"
check "as messages, with an example" python3 - "$tmp" <<'PY'
import json, sys
p = json.load(open(sys.argv[1] + "/prompt.json"))
assert list(p) == ["problem", "backend", "messages"] and p["backend"] == "c", p
assert [m["role"] for m in p["messages"]] == ["system", "user"]
user = p["messages"][1]["content"]
assert user.startswith("Example 1:") and user.count("Module:") == 1
plain = open(sys.argv[1] + "/prompt").read()
assert user.endswith(plain.split("[user]\n")[1].rstrip("\n"))
PY
refuses "a prompt of nothing" 2 'expected the KEY of a problem' "${problems[@]}" prompt source=builtin
refuses "of no problem" 1 '1_Rely: no such problem; did you mean' "${problems[@]}" prompt level1/1_Rely source=builtin
refuses "with an unknown key" 2 'unknown key "bckend"' "${problems[@]}" prompt level1/1_ReLU bckend=c
refuses "rendered for no model" 2 'model_name: no directory "nowhere"' "${problems[@]}" prompt level1/1_ReLU source=builtin \
    model_name=nowhere --rendered
if [ -f models/tiny/model.safetensors ]; then
    run=("$KRL" train model_name=models/tiny source=builtin level=1 generated_problems=40 batch_factor=2 prompt_option=few_shot
        max_tokens=16 batch_size=6 group_size=1 max_steps=1 num_correct_trials=1 measure_performance=false lora_rank=4)
    check "a run" "${run[@]}" log_path="$tmp/run"
    zstdcat "$tmp/run/traces.jsonl.zst" >"$tmp/traces"
    check "its problems have the prompts that it traced, and are in its export" python3 - "$KRL" "$tmp" <<'PY'
import json, subprocess, sys
krl, tmp = sys.argv[1:]
say = lambda *a: subprocess.run([krl, "problems", *a, "--config", tmp + "/run/config.yaml"], check=True, capture_output=True).stdout
traced = [r for r in map(json.loads, open(tmp + "/traces")) if "prompt_ids" in r]
rows = {r["key"]: r for r in map(json.loads, say("export").splitlines())}
assert any("generated/" in r["problem"] for r in traced) and any("level1/" in r["problem"] for r in traced), "both kinds"
for r in traced[:4]:
    p = json.loads(say("prompt", r["problem"], "--rendered", "--json"))
    assert p["problem"] == r["problem"] and p["ids"] == r["prompt_ids"], r["problem"]
    assert rows[r["problem"]]["prompt"] == p["messages"]
    assert p["text"].endswith(say("prompt", r["problem"], "--rendered").decode()[-40:])
PY
    refuses "a prompt that is too long" 1 'tokens, 20 are allowed' "${problems[@]}" prompt level1/1_ReLU source=builtin \
        model_name=models/tiny prompt_max_tokens=20
else
    skip "prompts of a run" "models/tiny has no model.safetensors; make embedded-model builds it"
fi
check "export into a file" "${problems[@]}" export source=builtin level=1 backend=triton --split all --output "$tmp/set.jsonl.zst"
zstdcat "$tmp/set.jsonl.zst" >"$tmp/set.jsonl"
check "a row for each problem, with all that verify needs" python3 - "$KRL" "$tmp" <<'PY'
import json, subprocess, sys
rows = [json.loads(line) for line in open(sys.argv[2] + "/set.jsonl")]
out = subprocess.run([sys.argv[1], "problems", "list", "--source", "builtin", "--level", "1", "--json"], check=True, capture_output=True)
listed = {r["key"]: r for r in map(json.loads, out.stdout.splitlines())}
assert {r["key"] for r in rows} == set(listed) and len(rows) == len(listed)
for r in rows:
    assert all(r[k] == v for k, v in listed[r["key"]].items()) and "class Model" in r["code"]
    assert r["verify"] == ["--problem", r["key"], "--source", "builtin", "--backend", "triton"]
    assert r["code"] in r["prompt"][1]["content"]
PY
check "which is a source itself" test "$("${problems[@]}" list --source "$tmp/set.jsonl" --split test --json | wc -l)" = "$(count --level 1 --split test)"
check "of a folder: its last problem is held out" sh -c "test \"\$('$KRL' problems export source='$tmp' backend=triton level=1 \
    --split test | grep -o '\"key\":\"[^\"]*')\" = '\"key\":\"level1/5_Small'"
refuses "a file of another kind" 2 'output: expected a name that ends in .jsonl' "${problems[@]}" export --output "$tmp/set.csv"
refuses "a source that is not there" 1 'nowhere: no such file' "${problems[@]}" export source="$tmp/nowhere"
refuses "a split of nothing" 2 'no problem is held out' "${problems[@]}" export source="$tmp/2_MLP.py" --split test
refuses "a problem without a prototype" 1 '^kernelrl: problem level1/2_Random: forward.. is random' "${problems[@]}" export source="$tmp" level=1 --output "$tmp/half.jsonl"
check "leaves no half of a file" sh -c "! ls '$tmp'/half*"
echo "1..$tap_n"
