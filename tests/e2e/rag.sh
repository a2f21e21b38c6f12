#!/usr/bin/env bash
# Retrieval from the command line: corpora from files and from a Hub, an index that FAISS reads, training with examples.
. "$(dirname "$0")/tap.bash"

build=("$KRL" build-rag-index --model lexical)
query() { "$KRL" query-rag-index --json "$@" 2>>"$tmp/said"; }

check "an index of the generator's pairs" "${build[@]}" --output "$tmp/gen" --corpus generator --count 96 --no-verify
check "it has its files" test -s "$tmp/gen/index.faiss" -a -s "$tmp/gen/records.jsonl" -a -s "$tmp/gen/metadata.json"
check "the same index again" "${build[@]}" --output "$tmp/twice" --corpus generator --count 96 --no-verify --threads 1
check "byte for byte" diff -r "$tmp/gen" "$tmp/twice"
check "verified pairs carry their speed-up" "${build[@]}" --output "$tmp/verified" --corpus generator --count 4
check "of each a number" test "$(grep -c '"speedup":[0-9]' "$tmp/verified/records.jsonl")" = 4
query --index "$tmp/gen" --problem level2/34_Linear_GELU -k 3 >"$tmp/got"
check "three records for a problem" test "$(wc -l <"$tmp/got")" = 3
query --index "$tmp/gen" --problem level2/34_Linear_GELU -k 3 --backend triton >"$tmp/got"
check "none of another backend" test ! -s "$tmp/got"
"$KRL" problems generate --count 1 --seed 0 | python3 -c 'import json, sys
print(json.loads(sys.stdin.readline())["code"])' >"$tmp/1_Own.py"
query --index "$tmp/gen" --problem "$tmp/1_Own.py" -k 1 --keep-copies >"$tmp/own"
check "a problem of the corpus finds itself when asked to" grep -qE '"id":0,"score":(1|0\.9999)' "$tmp/own"
query --index "$tmp/gen" --problem "$tmp/1_Own.py" -k 3 >"$tmp/got"
check "and not otherwise" sh -c "! grep -q '\"id\":0,' '$tmp/got'"

# Rows for supervised training, with examples that an index finds. The answers are taken as if they had been judged.
"$KRL" problems generate --count 40 --seed 9 --answers --per-problem 4 --broken --out "$tmp/pairs" >"$tmp/said" 2>&1
python3 - "$tmp/pairs/answers.jsonl" <<'PY'
import json, sys
rows = [json.loads(line) for line in open(sys.argv[1])]
with open(sys.argv[1], "w") as out:
    for r in rows:
        r.update(outcome="wrong_output" if r["broken"] else "correct", message="row 3", speedup=0 if r["broken"] else 1.5)
        out.write(json.dumps(r) + "\n")
PY
check "an index of judged answers" "${build[@]}" --output "$tmp/judged" --corpus "$tmp/pairs"
corpus=("$KRL" corpus from="$tmp/pairs" answers=1 think=0 refine=0 examples=0 seed=4)
check "rows with retrieved examples, verdicts and proposals" \
    "${corpus[@]}" output="$tmp/rows.jsonl" index="$tmp/judged" retrieved=1.5 verdicts=1 proposals=1
check "hold what they should" python3 - "$tmp/pairs" "$tmp/rows.jsonl" <<'PY'
import json, re, sys
answers = [json.loads(line) for line in open(sys.argv[1] + "/answers.jsonl")]
problems = [json.loads(line) for line in open(sys.argv[1] + "/problems.jsonl")]
broken = {a["source"].strip() for a in answers if a["broken"]}
ops = {p["ops"] for p in problems}
count = dict(plain=0, shown=0, verdict=0, proposal=0)
plan = lambda text: re.search("// plan: (.*)", text).group(1)
said, same, total = set(), 0, 0
for row in map(json.loads, open(sys.argv[2])):
    user, done = row["prompt"][1]["content"], row["completion"]
    if done.startswith("<VERDICT>"):
        count["verdict"] += 1
        kernel = user.split("```c\n")[1].split("\n```")[0].strip()
        assert done == "<VERDICT>%s</VERDICT>" % ("wrong" if kernel in broken else "correct")
        said.add(done)
    elif done.startswith("<PROBLEM>"):
        count["proposal"] += 1
        shape, rest = done[9:-10].split(" ", 1)
        assert shape in ("rows", "image", "signal", "seq") and rest in ops
        assert "a problem of %d operator" % (rest.count(" ") + 1) in user
    elif "Example 1:" in user:
        count["shown"] += 1
        modules = re.findall("```python\n(.*?)\n```", user, re.S)
        kernels = re.findall("<KERNEL>\n```c\n(.*?)\n```", user, re.S)
        assert 2 <= len(modules) <= 4 and len(kernels) == len(modules) - 1
        assert len(set(modules)) == len(modules)  # its own module is no example
        assert not broken & {k.strip() for k in kernels}
        total += len(kernels)
        same += sum(plan(k) == plan(done) for k in kernels)
    else:
        count["plain"] += 1
assert count["plain"] == count["verdict"] == 40 and len(said) == 2, (count, said)
assert 40 <= count["shown"] <= 80 and 20 <= count["proposal"] <= 40, count
assert same > total / 2, (same, total)
PY
check "the same rows again" "${corpus[@]}" output="$tmp/again.jsonl" index="$tmp/judged" retrieved=1.5 verdicts=1 proposals=1
check "byte for byte" cmp "$tmp/rows.jsonl" "$tmp/again.jsonl"
refuses "rows from an index that is none" 1 'no index here' "${corpus[@]}" output="$tmp/none.jsonl" index="$tmp/pairs"

# The public collections, small, on a Hub of our own.
commit=0123456789abcdef0123456789abcdef01234567
repo() { # ORG/NAME: an empty data set, and $here its files
    here=$tmp/hub/repos/datasets/$1/$commit
    mkdir -p "$here/data"
    printf '{"main": "%s"}' $commit >"$here/../refs.json"
}
repo GPUMODE/KernelBook
printf '%s\n' '{"python_code": "class A:\n def forward(self, x):\n  return torch.relu(x)", "triton_code": "@triton.jit", "entry_point": "A"}' \
    '{"python_code": "", "triton_code": "@triton.jit", "entry_point": "B"}' >"$here/data/train.jsonl"
repo SakanaAI/AI-CUDA-Engineer-Archive
rows='[{"PyTorch_Code_Module": "class B:\n def forward(self, x):\n  return torch.tanh(x)", "CUDA_Code": "__global__", "Correct": True, "Level_ID": "level_1", "Op_Name": "22_Tanh", "CUDA_Speedup_Native": 2.5, "NCU_Profile": "long"},
 {"PyTorch_Code_Module": "class B", "CUDA_Code": "wrong", "Correct": False, "Level_ID": "level_1", "Op_Name": "22_Tanh"},
 {"PyTorch_Code_Module": "class B", "CUDA_Code": "elsewhere", "Correct": True, "Level_ID": "level_3", "Op_Name": "1_MLP"}]'
python3 -c "import json; [print(json.dumps(r)) for r in $rows]" >"$here/data/level_1.jsonl"
coproc SERVER { exec python3 tests/hub/server.py "$tmp/hub"; }
read -r hub _ <&"${SERVER[0]}"
export HF_ENDPOINT=http://127.0.0.1:$hub HF_HOME=$tmp/home no_proxy=127.0.0.1
unset HF_HUB_CACHE HUGGINGFACE_HUB_CACHE HF_TOKEN HF_HUB_OFFLINE
check "kernelbook and sakana, levels 1 and 2" "${build[@]}" --output "$tmp/both" --sakana-levels 1,2
check "two records: what is wrong, empty or of another level is left out" test "$(wc -l <"$tmp/both/records.jsonl")" = 2
check "their backends" sh -c "grep -q '^{\"backend\":\"triton\"' '$tmp/both/records.jsonl' &&
    grep -q '^{\"backend\":\"cuda\".*22_Tanh.*2.5' '$tmp/both/records.jsonl'"
check "--include-incorrect" "${build[@]}" --output "$tmp/wrong" --cuda-only --include-incorrect
check "has three of sakana alone" test "$(grep -c '"cuda"' "$tmp/wrong/records.jsonl")$(wc -l <"$tmp/wrong/records.jsonl")" = 33
rm -r "$tmp/hub/repos/datasets/SakanaAI"
check "a corpus that cannot be had is passed over" env HF_HOME="$tmp/other" "${build[@]}" --output "$tmp/one"
cp "$tmp/out" "$tmp/said"
check "with a warning" grep -q 'corpus sakana.*going on without it' "$tmp/said"
refuses "unless nothing is left" 1 'no record' env HF_HOME="$tmp/third" "${build[@]}" --output "$tmp/none" --cuda-only
refuses "the default model that cannot be had" 2 'BAAI/bge-code-v1.*--model lexical' \
    "$KRL" build-rag-index --output "$tmp/none" --corpus generator --count 4
exec {SERVER[1]}>&-
wait "$SERVER_PID"

if [ -f models/tiny/model.safetensors ]; then
    check "an index by a model" "$KRL" build-rag-index --output "$tmp/neural" --model models/tiny --corpus generator \
        --count 8 --no-verify --batch-size 3
    refuses "rows take no index of a model" 1 'rows take an index built with --model lexical' \
        "${corpus[@]}" output="$tmp/none.jsonl" index="$tmp/neural"
    check "is asked by it" query --index "$tmp/neural" --problem 1/1 -k 2
    check "an index with an instruction of its own" "$KRL" build-rag-index --output "$tmp/instructed" --model models/tiny \
        --corpus generator --count 8 --no-verify --query-prefix 'import torch.nn.functional as F: '
    score() { query --index "$1" --problem 1/1 -k 1 --keep-copies | grep -o '"score":[0-9.]*'; }
    check "embeds the same" cmp "$tmp/neural/index.faiss" "$tmp/instructed/index.faiss"
    check "and asks another question" test -n "$(score "$tmp/neural")" -a \
        "$(score "$tmp/neural")" != "$(score "$tmp/instructed")"
    train=("$KRL" train model_name=models/tiny max_steps=1 max_tokens=16 group_size=2 batch_size=2 measure_performance=false
        num_correct_trials=1 lora_rank=0 prompt_option=raicl)
    check "training with examples" "${train[@]}" log_path="$tmp/run" rag_index_path="$tmp/gen"
    check "says where they come from" grep -q 'gen: 96 records, embedded by lexical' "$tmp/run/logs.log"
    check "and so does its configuration" grep -q 'prompt_option: "*raicl' "$tmp/run/config.yaml"
    refuses "without an index" 2 'rag_index_path: .*needs the folder of an index' "${train[@]}" log_path="$tmp/x"
    refuses "with a folder that is none" 1 'rag_index_path: .*no index here' \
        "${train[@]}" log_path="$tmp/x" rag_index_path="$tmp"
    sed -i 's/"dim":1024/"dim":1000/' "$tmp/twice/metadata.json"
    refuses "with an index of another dimension" 1 'metadata.json says 96 of 1000' \
        "${train[@]}" log_path="$tmp/x" rag_index_path="$tmp/twice"
    truncate -s 5000 "$tmp/gen/index.faiss"
    refuses "with one that was cut" 1 'index.faiss: 5000 bytes.*cut' \
        "${train[@]}" log_path="$tmp/x" rag_index_path="$tmp/gen"
else
    skip "training with examples" "models/tiny has no model.safetensors; make embedded-model builds it"
fi
refuses "both backends alone" 2 'leave nothing' "${build[@]}" --output "$tmp/x" --triton-only --cuda-only
refuses "no output" 2 'output: expected' "${build[@]}"
refuses "levels that are none" 2 'sakana-levels: expected' "${build[@]}" --output "$tmp/x" --sakana-levels 1,x
refuses "an empty corpus" 1 'not a single row' sh -c ': >"$1/e.jsonl" && shift && "$@"' sh "$tmp" \
    "${build[@]}" --output "$tmp/x" --corpus "$tmp/e.jsonl"
refuses "rows without the columns" 1 'r.jsonl:1: expected the columns' sh -c 'echo "{\"a\": 1}" >"$1/r.jsonl" && shift && "$@"' sh \
    "$tmp" "${build[@]}" --output "$tmp/x" --corpus "$tmp/r.jsonl"
echo "1..$tap_n"
