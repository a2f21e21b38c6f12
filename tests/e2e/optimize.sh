#!/usr/bin/env bash
# kernelrl optimize: a scripted model of graded kernels and cheats; files with modules of several kinds and shapes; the
# drop-in; interruption; learning; a source of problems; every refusal.
. "$(dirname "$0")/tap.bash"
mkdir "$tmp/cache"
export KERNELRL_DROPIN_CACHE=$tmp/cache
python3=${KERNELRL_PYTHON:-/usr/bin/python3}

# ---- a scripted model ----
python3 tests/remote/graded.py "$tmp/block.py" "$tmp/script.json"
mkfifo "$tmp/in"
python3 tests/remote/server.py --answers "$tmp/script.json" --log "$tmp/log" <"$tmp/in" >"$tmp/port" &
exec 7>"$tmp/in"
for _ in $(seq 100); do [ -s "$tmp/port" ] && break || sleep 0.1; done
url=http://127.0.0.1:$(cat "$tmp/port")/v1
scripted=("$KRL" optimize "$tmp/block.py" sampler=openai base_url="$url" model_name=ok proof_processes=2 proof_finalists=3 proof_budget_s=600
    num_correct_trials=3 search.wave_answers=8 sandbox.cache_dir="$tmp/cache")
check "a model that writes graded kernels and cheats" "${scripted[@]}" verdicts=48 output_path="$tmp/a"
check "finds the best honest one in twice the verdicts of an oracle, and reports no cheat" python3 - "$tmp/a" <<'PY'
import json, sys
rows = [json.loads(line) for line in open(sys.argv[1] + "/candidates.jsonl")]
found = [r for r in rows if "id" in r]
again = [r for r in rows if "again" in r]
verdict = json.load(open(sys.argv[1] + "/verdict.json"))
by_plan = {r["plan"]: r for r in found if r["correct"] and r["same_as"] is None}
assert sorted(by_plan) == ["grade 0", "grade 1", "grade 2"], sorted(by_plan)
outcomes = {r["verdicts"][-1]["outcome"] for r in found if r["verdicts"]}
assert {"compile_error", "lint", "wrong_output", "unstable", "unwritten", "crash"} <= outcomes, outcomes
assert all(r["plan"] == "grade 9" for r in found if not r["correct"])
# An oracle asks for the next grade as soon as it can. Of the eight answers to such a prompt, which come in any order, it
# judges 4.5 until the good one has come, and has three grades to climb.
oracle = 3 * 4.5
best = by_plan["grade 2"]
judged = {r["normal"] for r in found if r["id"] <= best["id"]}
assert len(judged) <= 2 * oracle and best["spent"] <= 2 * oracle + len(again), (len(judged), best["spent"], len(again))
winner = found[verdict["winner"]]
assert winner["plan"] == "grade 2" and verdict["correct"] and verdict["module"] == "Block", verdict
proof = [r for r in map(json.loads, open(sys.argv[1] + "/proof.jsonl")) if "process" in r]
assert {r["id"] for r in proof if r["process"] == 0} == {r["id"] for r in by_plan.values()}
assert not verdict["faster"], "two processes cannot show it"
assert len(verdict["shapes"]) == 2 and abs(verdict["shapes"][1]["weight"] - 0.75) < 1e-9
assert verdict["processes"] == 2 and len(again) <= 24, (verdict["processes"], len(again))
PY
check "prompts say what is known" python3 - "$tmp/log" <<'PY'
import json, sys
texts = [json.loads(line)["body"]["messages"][1]["content"] for line in open(sys.argv[1])]
for words in ("The answer must be right, and is timed, with the inputs of all of these: rows=256; rows=64",
              "A call reads and writes at least", "Begin the code with", "Attempt 1:", "With rows=64:",
              "The compiler says:", "did not compile", "Write a better kernel."):
    assert any(words in t for t in texts), words
assert all("calls++ >" not in t for t in texts), "a cheat was shown"
PY
check "the report" eval 'grep -q "Measured behind the search in 2 fresh processes" "$tmp/a/report.md" &&
    grep -q "^kernelrl verify --problem $tmp/a/problem.py --solution $tmp/a/best.c --backend c$" "$tmp/a/report.md" &&
    grep -q "torch.compile (default)" "$tmp/a/report.md"'
check "its command judges the answer again" "$KRL" verify --problem "$tmp/a/problem.py" --solution "$tmp/a/best.c" \
    --backend c --no-measure
check "lineage.html is well-formed" python3 - "$tmp/a/lineage.html" <<'PY'
import re, sys, xml.etree.ElementTree as ET
text = open(sys.argv[1]).read()
assert "http" not in re.sub(r"http-equiv|XMLSchema", "", text), "something from elsewhere"
body = text.split("</style>")[1].replace("</head>", "")
ET.fromstring("<html>" + body.replace("<body>", "<body>"))
assert text.count('<tr class="best">') == 1 and "<polyline" not in text and "<path" in text
PY
check "the drop-in takes the place of modules that it fits, and of no other" "$python3" - "$tmp" <<'PY'
import sys
tmp = sys.argv[1]
sys.path[:0] = [tmp + "/a", tmp]
import torch, best
from block import Block

torch.manual_seed(1)
net = torch.nn.Sequential(Block(300, 2.0), torch.nn.ReLU(), Block(300, 2.0), Block(300, 5.0), Block(200, 2.0))
fits = net[:4]
x = torch.randn(64, 300)
want = fits(x)
assert best.patch(net) == 2, "the one of another scale, and the one of another size, are not patched"
assert best.patch(net) == 0
keys = sorted(net.state_dict())
with torch.no_grad():
    got = fits(x)
assert torch.allclose(got, want, atol=1e-4, rtol=1e-4) and net[0]._kernelrl.taken == 1 == net[2]._kernelrl.taken
assert sorted(net.state_dict()) == keys
with torch.no_grad():
    net[0].bias.add_(1.0)  # parameters are those of the module, whatever becomes of them
    assert torch.allclose(net[0](x), torch.relu(x + net[0].bias) * 2, atol=1e-4)
    assert net[0](torch.randn(7, 300)).shape == (7, 300) and net[0]._kernelrl.taken == 2, "another shape is its own"
y = x.clone().requires_grad_()
net[0](y).sum().backward()
assert y.grad is not None and net[0]._kernelrl.taken == 2, "gradients are the module's own"
assert best.unpatch(net) == 2 and not hasattr(net[0], "_kernelrl")
PY
before=$(wc -l <"$tmp/log")
check "the same command again" "${scripted[@]}" verdicts=48 output_path="$tmp/a"
check "asks nothing more" [ "$(wc -l <"$tmp/log")" = "$before" ]

# ---- our own model: interrupted, it ends where it would have ended ----
if [ -f models/tiny/model.safetensors ]; then
    tiny=("$KRL" optimize "$tmp/block.py" model_name=models/tiny max_tokens=200 measure_performance=false num_correct_trials=2
        search.prompt_answers=3 search.islands=2 sandbox.cache_dir="$tmp/cache")
    same() { # FOLDER FOLDER: the same candidates, whenever they were found
        python3 - "$1" "$2" <<'PY'
import json, sys
def rows(folder):
    out = []
    for line in open(folder + "/candidates.jsonl"):
        row = json.loads(line)
        row.pop("at_s", None)
        for v in row["verdicts"]:
            for key in ("compile_s", "run_s", "time_s", "cached"):
                v.pop(key, None)
        out.append(row)
    return out
a, b = map(rows, sys.argv[1:])
assert a == b and len(a) > 5, (len(a), len(b), [(x, y) for x, y in zip(a, b) if x != y][:1])
PY
    }
    tiny+=(search.wave_answers=4)
    learn=(train=true lora_rank=4 learning_rate=1e-3)
    check "learning with our own model" eval '"${tiny[@]}" "${learn[@]}" verdicts=14 output_path="$tmp/whole" || [ $? = 1 ]'
    "${tiny[@]}" "${learn[@]}" verdicts=14 output_path="$tmp/cut" >"$tmp/out" 2>&1 &
    pid=$!
    for _ in $(seq 600); do
        [ "$(wc -l 2>/dev/null <"$tmp/cut/waves.jsonl" || echo 0)" -ge 3 ] && break || sleep 0.1
    done
    kill -KILL $pid 2>/dev/null
    wait $pid 2>/dev/null
    check "killed, it goes on" eval '"${tiny[@]}" "${learn[@]}" verdicts=14 output_path="$tmp/cut" || [ $? = 1 ]'
    check "and has found the same" same "$tmp/whole" "$tmp/cut"
    check "learning leaves an adapter" test -s "$tmp/whole/policy/adapter_model.safetensors"
    check "that another search begins with" eval '"${tiny[@]}" verdicts=2 from="$tmp/whole" output_path="$tmp/from" || [ $? = 1 ]'
    check "a source of problems" eval '"$KRL" optimize problems/level1 end_problem=3 model_name=models/tiny max_tokens=200 \
        measure_performance=false num_correct_trials=2 verdicts=18 search.wave_problems=2 search.wave_answers=4 \
        output_path="$tmp/many" || [ $? = 1 ]'
    check "has KernelBench's table and a folder a problem" python3 - "$tmp/many" <<'PY'
import json, os, sys
r = json.load(open(sys.argv[1] + "/results.json"))
assert r["problems"] == 3 == len(r["tasks"]) and set(r["fast_p"]) == {"0", "0.5", "0.8", "1", "1.5", "2"}
assert r["verdicts"] == 18 and r["solved"] == sum(t["correct"] for t in r["tasks"])
for t in r["tasks"]:
    folder = sys.argv[1] + "/" + t["task"].replace("/", "_")
    assert os.path.exists(folder + "/lineage.html") and os.path.exists(folder + "/best.py") == t["correct"]
PY
    seconds=$(date +%s)
    check "a budget of time" eval '"${tiny[@]}" budget=8s proof_budget_s=30 output_path="$tmp/timed" || [ $? = 1 ]'
    check "holds, but for the processes that are started and ended" [ $(($(date +%s) - seconds)) -lt 120 ]
    check "and says what the proof may take" grep -q 'proof: at most 30 s more' "$tmp/timed/logs.log"
else
    skip "our own model" "models/tiny has no model.safetensors; make embedded-model builds it"
fi

# ---- what is wrong is said in one line ----
# worker/tests/test_module_file.py has the other faults of a file
echo 'def f(:' >"$tmp/bad.py"
refuses "a syntax error" 1 'bad.py: .*line 1: ' "$KRL" optimize "$tmp/bad.py" sampler=openai base_url="$url" model_name=ok \
    verdicts=4 output_path="$tmp/bad"
refuses "no budget" 2 'no budget: give budget=TIME' "$KRL" optimize "$tmp/block.py" model_name=models/tiny
refuses "a budget that is none" 2 'budget: expected a time such as' "$KRL" optimize "$tmp/block.py" budget=soon
refuses "no such file" 1 'nothing.py: no such file' "$KRL" optimize "$tmp/nothing.py" verdicts=3 output_path="$tmp/bad"
mkdir "$tmp/empty"
refuses "a folder without problems" 1 'no problems: expected files' "$KRL" optimize "$tmp/empty" model_name=models/tiny \
    verdicts=3 output_path="$tmp/bad"
refuses "no file and no source" 2 'usage: kernelrl optimize' "$KRL" optimize verdicts=3
refuses "a class that is not there" 1 'module: no class Other' "${scripted[@]}" module=Other verdicts=3 output_path="$tmp/bad"
refuses "an endpoint that is down" 1 'base_url: nobody answers at' "${scripted[@]}" verdicts=3 output_path="$tmp/bad" \
    base_url=http://127.0.0.1:9/v1
refuses "one that talks nonsense" 1 'no JSON; it begins with' "${scripted[@]}" verdicts=3 output_path="$tmp/bad" \
    model_name=html sampler_tries=1
refuses "one that is slow" 1 'gave no whole answer within 0.3 s' "${scripted[@]}" verdicts=3 output_path="$tmp/bad" \
    model_name=slow:9 sampler_tries=1 sampler_timeout_s=0.3
refuses "learning of a server's model" 2 'train: a server.s model cannot be trained here' "${scripted[@]}" verdicts=3 \
    train=true output_path="$tmp/bad"
sed 's/2.0\]/3.0]/' "$tmp/block.py" >"$tmp/block2.py" && mv "$tmp/block2.py" "$tmp/block.py"
refuses "a file that has changed since" 1 'the file has changed since' "${scripted[@]}" verdicts=48 output_path="$tmp/a"
echo "1..$tap_n"
