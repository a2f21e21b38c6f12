#!/usr/bin/env bash
# Problems that are not trusted (verify --jail-problem): what they reach, and what becomes of those that end, hang or eat.
. "$(dirname "$0")/tap.bash"
export FAKE_TOKEN=1
python3 -c '
import socket, sys, time
s = socket.create_server(("127.0.0.1", 0))
print(s.getsockname()[1], flush=True)
time.sleep(600)' >"$tmp/port" &
listener=$!
trap 'kill $listener; rm -rf "$tmp"' EXIT
until [ -s "$tmp/port" ]; do sleep 0.1; done
chmod 755 "$tmp"
echo secret >"$tmp/secret"
sed "s|@SECRET_FILE@|$tmp/secret|; s|@PORT@|$(cat "$tmp/port")|" tests/cheats/problems/hostile.py >"$tmp/hostile.py"
relu='void kernel(const float *restrict x, float *restrict out) { for (size_t i = 0; i < X_N; i++) out[i] = x[i] > 0 ? x[i] : 0; }'
echo "$relu" >"$tmp/relu.c"
sed 's/? x\[i\] : 0/? x[i] : 1/' "$tmp/relu.c" >"$tmp/wrong.c"
printf 'import torch\nclass ModelNew(torch.nn.Module):\n    def forward(self, x):\n        return x.clamp(min=0)\n' >"$tmp/relu.py"
problem() { # NAME TOP BODY: a ReLU with TOP in front and BODY in forward()
    printf 'import os, torch\nimport torch.nn as nn\n%s\nclass Model(nn.Module):\n    def forward(self, x):\n        %s\n        return torch.relu(x)\ndef get_inputs():\n    return [torch.randn(64, 64)]\ndef get_init_inputs():\n    return []\n' "$2" "$3" >"$tmp/$1.py"
}
judge() { "$KRL" verify --no-measure --trials 2 --jail-problem "$@"; }

refuses "without the jail the attempts succeed" 1 "holes when .*'read SECRET_FILE'.*'write beside it'.*'connect'.*'run a program'.*'secrets in the environment'" \
    "$KRL" verify --no-measure --problem "$tmp/hostile.py" --solution "$tmp/relu.c"
check "in it none does, and the problem is one like any other" judge --problem "$tmp/hostile.py" --solution "$tmp/relu.c"
check "the same with the referee of ModelNew answers" judge --problem "$tmp/hostile.py" --solution "$tmp/relu.py" --backend torch_cpu
refuses "a wrong answer is wrong there" 1 'wrong_output' judge --problem "$tmp/hostile.py" --solution "$tmp/wrong.c"
check "a known problem gets the verdict that it gets without" "$KRL" verify --jail-problem --problem level1/1_ReLU --solution "$tmp/relu.c"
problem ends 'os._exit(3)' pass
refuses "a problem that ends its process is a missing verdict" 1 'infrastructure|problem_error' judge --problem "$tmp/ends.py" --solution "$tmp/relu.c"
problem kills 'import signal
os.kill(1, signal.SIGKILL)' pass
refuses "nobody can be killed" 1 'problem_error' judge --problem "$tmp/kills.py" --solution "$tmp/relu.c"
problem eats pass 'keep = [torch.ones(1 << 28) for _ in range(1000)]'
refuses "a problem that eats memory fails by itself" 1 'problem_error|infrastructure' judge --problem "$tmp/eats.py" --solution "$tmp/relu.c"
problem maps 'import mmap
keep = []
for _ in range(1000):
    m = mmap.mmap(-1, 1 << 30)
    m.write(b"x" * 4096)
    keep.append(m)' pass
refuses "shared memory has a bound, too" 1 'problem_error|infrastructure' judge --problem "$tmp/maps.py" --solution "$tmp/relu.c"
refuses "one flag that cannot hold elsewhere" 2 'judged by this process alone' judge --verify-hosts local:1 --problem 1/1 --solution "$tmp/relu.c"

# Two hostile problems and a known one in one process: none sees another's files, and each has its own verdict.
problem leaves 'open("/tmp/left", "w").write("x")' pass
problem finds 'if os.path.exists("/tmp/left"): raise RuntimeError("found what another problem has left")' pass
python3 - "$tmp" >"$tmp/requests.jsonl" <<'PY'
import json, sys
text = lambda name: open(f"{sys.argv[1]}/{name}").read()
quick = {"measure": False, "trials": 2}
for i, problem in enumerate(["leaves.py", "finds.py", "leaves.py", "1/1", "finds.py"]):
    which = {"code": text(problem)} if problem.endswith(".py") else problem
    print(json.dumps({"id": str(i), "problem": which, "solution": text("relu.c") + "// %d" % i, "options": quick}))
PY
check "problems in requests are kept apart" "$KRL" verify --jsonl --jail-problem --source builtin <"$tmp/requests.jsonl"
# Five threads tell this worker from those of other tests.
alive() { pgrep -f 'kernelrl_worker/__main__.py 5 jailed' >/dev/null; }
problem hangs 'import time
time.sleep(300)' pass
"$KRL" verify --jail-problem --threads 5 --no-measure --problem "$tmp/hangs.py" --solution "$tmp/relu.c" >/dev/null 2>&1 &
killed=$!
until alive; do sleep 0.1; done
kill -9 $killed
gone() { for _ in $(seq 300); do alive || return 0; sleep 0.1; done; return 1; }
check "when the program is killed, a problem that hangs ends with it" gone
echo "1..$tap_n"
