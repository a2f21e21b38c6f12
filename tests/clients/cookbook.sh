#!/usr/bin/env bash
# Recipes of tinker_cookbook, unchanged, on the embedded model, which an alias calls as they know it.
. "$(dirname "$0")/serve.bash"
needs tinker tinker_cookbook torch datasets
export TINKER_TELEMETRY=0 TINKER_API_KEY=tml-test HF_HUB_OFFLINE=1 HF_HOME="$tmp/hf" WANDB_MODE=disabled TQDM_DISABLE=1
key=$TINKER_API_KEY
# Its tokenizer lies in a cache of the Hub under that name.
cache=$HF_HOME/hub/models--Qwen--Qwen3-8B
mkdir -p "$cache/refs" "$cache/snapshots/one"
printf one >"$cache/refs/main"
cp models/tiny/config.json models/tiny/tokenizer* "$cache/snapshots/one/"
serve --tinker "$tmp/state" --alias Qwen/Qwen3-8B=models/tiny --verify --jobs "$tmp/jobs.sqlite"
export TINKER_BASE_URL=$url PYTHONPATH=$PWD/python
recipe() { # NAME FOLDER: its metrics go to $tmp/NAME.json
    "$python" -W ignore tests/clients/cookbook_recipes.py "$1" "$tmp/$2" >"$tmp/log" 2>&1 || { tail -n 12 "$tmp/log"; return 1; }
    tail -n 1 "$tmp/log" >"$tmp/$1.json"
}
# `holds NAME EXPRESSION`: it is true of the recipe's metrics m, a list with a dictionary for each line.
holds() { "$python" -c 'import json, math, sys
m = json.load(open(sys.argv[1]))
get = lambda key: [x[key] for x in m if key in x]
assert eval(sys.argv[2]), m' "$tmp/$1.json" "$2"; }

# Two recipes grade answers, with packages that the cookbook has as an extra.
if ! why=$("$python" -c "import sympy, pylatexenc, math_verify" 2>&1); then
    skip "math_rl.train and rl_loop" "$(tail -n 1 <<<"$why")"
else
    check "math_rl.train env=arithmetic" recipe math_rl math_rl
    check "made its steps" holds math_rl 'len(get("optim/lr")) == 2'
    check "what it sampled is what it trains, to the bit" holds math_rl 'get("optim/kl_sample_train_v1") == [0.0, 0.0]'
    check "rl_loop" recipe rl_loop rl_loop
    check "made its steps" holds rl_loop 'len(get("reward/total") or get("reward/mean") or get("optim/lr")) == 2'
fi
check "rl.train on our problems and verdicts" recipe kernels kernels
check "each answer has a verdict, and what was sampled is what is trained" holds kernels \
    'len(get("env/all/reward/total")) == 2 and get("optim/kl_sample_train_v1") == [0.0, 0.0]'
check "sl_loop" recipe sl_loop sl_loop
check "its loss falls" holds sl_loop 'get("train_mean_nll")[-1] < get("train_mean_nll")[0]'
check "sl_loop goes on from its checkpoint" recipe sl_loop_resumed sl_loop
check "with the next step, from where it was" holds sl_loop_resumed 'max(get("step")) == 2 and get("train_mean_nll")[-1] < get("train_mean_nll")[0]'
check "preference.dpo" recipe dpo dpo
check "its first loss is log 2, since it begins as the reference" holds dpo 'abs(get("dpo_loss")[0] - math.log(2)) < 1e-6'
check "and its margin grows" holds dpo 'get("margin")[-1] > get("margin")[0]'
echo "1..$tap_n"
