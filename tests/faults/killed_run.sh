#!/usr/bin/env bash
# Runs of every shape, each killed by SIGKILL several times and resumed: the bits of the run that was never killed.
. "$(dirname "$0")/../e2e/tap.bash"
if [ ! -f models/tiny/model.safetensors ]; then
    skip "killed runs" "models/tiny has no model.safetensors; make embedded-model builds it"
    echo "1..$tap_n"
    exit 0
fi
export BIN
BIN=$(dirname "$KRL")
small=(model_name=models/tiny max_tokens=300 batch_size=2 group_size=4 reward_speed_weight=1 num_correct_trials=2 level=1
    end_problem=12 save_every=2 eval_every=3 eval_samples=1 max_steps=4)
kill_resume() { # NAME SEED KILLS [key=value]...
    local name=$1 seed=$2 kills=$3
    shift 3
    check "$name" tools/kill_resume --kills "$kills" --within 4 --seed "$seed" "$tmp/k" "${small[@]}" "$@"
    rm -rf "$tmp/last"
    mv "$tmp/k" "$tmp/last"
}
kill_resume "GRPO, full weights" 11 5 lora_rank=0
kill_resume "GRPO, LoRA, with a KL reference" 12 4 lora_rank=8 kl_penalty_coef=0.05
kill_resume "turns" 13 4 lora_rank=0 mode=multi_turn max_turns=3 group_size=2 max_steps=3
kill_resume "turns, with a running baseline and replaced groups" 2 2 lora_rank=0 mode=multi_turn max_turns=2 advantage=ema \
    refill_rounds=1 group_size=2 max_steps=3 level=0 curriculum.enabled=true curriculum.window=1 hierarchical_rewards=true advantage_group=turn
check "metrics and charts of a run with turns" sh -c "'$KRL' runs metrics whole --runs-dir '$tmp/last' | grep -qE '^ +2 .*%' &&
    for tag in Reward/Mean Kernel/CorrectRate Multiturn/SuccessRate Multiturn/AvgTurns Multiturn/Turn1/CorrectRate; do
        cat '$tmp'/last/whole/tensorboard/* | grep -aq \$tag || exit 1
    done"
kill_resume "one step ahead, judged beside the model" 14 4 lora_rank=8 max_staleness=1 overlap=on save_every=1
kill_resume "two steps ahead" 3 3 lora_rank=0 max_staleness=2 max_steps=5 save_every=1
check "answers are two updates old in the end" sh -c "tail -n 1 '$tmp/last/whole/metrics.jsonl' | grep -q '\"train/staleness\":2[,}]'"
check "and are weighed by their ratios" grep -q '^ratio_correction: truncate' "$tmp/last/whole/config.yaml"
kill_resume "roles beside the solver" 15 4 lora_rank=0 roles.verifier_samples=2 roles.corrector_samples=1
check "answers" "$KRL" problems generate --count 24 --seed 3 --answers --out "$tmp/pairs"
check "as supervised rows" "$KRL" corpus from="$tmp/pairs" output="$tmp/rows.jsonl" unverified=true refine=0 examples=0
sft=("$KRL" sft model_name=models/tiny data="$tmp/rows.jsonl" lora_rank=0 max_steps=12 save_every=3 batch_tokens=1024)
check "supervised training, never killed" "${sft[@]}" output="$tmp/whole"
"${sft[@]}" output="$tmp/killed" >"$tmp/said" 2>&1 &
pid=$!
until compgen -G "$tmp/killed/*" >/dev/null || ! kill -0 $pid 2>/dev/null; do sleep 0.05; done
sleep 1
kill -KILL $pid 2>/dev/null
wait $pid 2>/dev/null
check "killed, it goes on" "${sft[@]}" output="$tmp/killed"
check "to the same weights" cmp "$tmp/whole/model.safetensors" "$tmp/killed/model.safetensors"
echo "1..$tap_n"
