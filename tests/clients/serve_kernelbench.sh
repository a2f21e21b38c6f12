#!/usr/bin/env bash
# KernelBench's scripts/generate_samples.py against `kernelrl serve`: as its local server (raw completions), and through
# litellm (chats), which gives kernels of the embedded Triton model. Needs a checkout: KERNELBENCH_ROOT.
. "$(dirname "$0")/serve.bash"
if [ ! -f "${KERNELBENCH_ROOT:-/nowhere}/src/kernelbench/utils.py" ]; then
    skip "KernelBench's generate_samples.py" "no checkout of KernelBench (KERNELBENCH_ROOT)"
    echo "1..$tap_n"
    exit 0
fi
needs torch litellm pydra dotenv tqdm tomli
model=models/tiny-triton
serve_without_key
export SGLANG_API_KEY=x OPENAI_API_KEY=x OPENAI_API_BASE=$url/v1 HF_HUB_OFFLINE=1 LITELLM_LOCAL_MODEL_COST_MAP=True
cat >"$tmp/run.py" <<'P'
import os, runpy, sys
root = os.environ["KERNELBENCH_ROOT"]
sys.path.insert(0, root + "/src")
import kernelbench.utils as utils  # its preset of a local server names a host of its own
utils.SERVER_PRESETS["local"].update(server_address="127.0.0.1", server_port=int(sys.argv[1]))
sys.argv = ["generate_samples.py", *sys.argv[2:]]
runpy.run_path(root + "/scripts/generate_samples.py", run_name="__main__")
P
generate() { # NAME KEY=VALUE...
    local name=$1
    shift
    "$python" "$tmp/run.py" "${url##*:}" run_name="$name" runs_dir="$tmp/runs" dataset_src=local level=1 "subset=(19,22)" \
        backend=triton num_workers=4 temperature=0.0 max_tokens=1500 "$@" >"$tmp/$name.log" 2>&1
}
check "through litellm, as chats" generate chats server_type=openai model_name=openai/models/tiny-triton
check "it has written kernels" test -s "$tmp/runs/chats/level_1_problem_19_sample_0_kernel.py"
check "of Triton" grep -q 'triton.jit' "$tmp/runs/chats/level_1_problem_19_sample_0_kernel.py"
check "as its local server, as raw completions" generate raw server_type=local
check "every request was answered" [ "$(grep -c '"path":"/v1/completions","status":200' "$tmp/access")" = 4 ]
cp "$tmp/raw.log" "$tmp/out"
echo "1..$tap_n"
