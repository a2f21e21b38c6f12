#!/usr/bin/env bash
# Roles beside the solver, in a whole run: sampled, scored, trained on, written down, and gone on with exactly. The
# embedded model knows none of their formats; src/rl/loop/roles_test.c shows what they earn.
. "$(dirname "$0")/tap.bash"
if [ ! -f models/tiny/model.safetensors ]; then
    skip "roles" "models/tiny has no model.safetensors; make embedded-model builds it"
    echo "1..$tap_n"
    exit 0
fi
export BIN
BIN=$(dirname "$KRL")
small=(model_name=models/tiny lora_rank=0 max_tokens=200 batch_size=2 group_size=2 num_correct_trials=1 level=1 end_problem=8
    measure_performance=false save_every=1 max_steps=2 roles.answer_tokens=16)
all=(roles.verifier_samples=2 roles.corrector_samples=2 roles.judge_reward=0.1 roles.judge_weight=1 roles.proposals=1)
check "a run with all roles, killed and resumed: the uninterrupted run's bits" \
    tools/kill_resume --kills 1 --within 4 --seed 3 "$tmp/k" "${small[@]}" "${all[@]}"
metrics=$tmp/k/whole/metrics.jsonl
for name in verifier_reward verifier_accuracy verifier_majority corrector_repairs judge_comparisons judge_decided \
    proposer_valid_rate proposer_length prompts_too_long; do
    check "metrics: roles/$name" grep -q "\"roles/$name\":" "$metrics"
done
zstdcat "$tmp/k/whole/traces.jsonl.zst" >"$tmp/traces"
check "predictions in the traces" grep -q '"role":"verifier","about":\[[01]\]' "$tmp/traces"
check "proposals, which are about no answer" grep -q '"role":"proposer","about":\[\]' "$tmp/traces"
check "what is not read earns nothing" grep -qE '"role":"verifier".*"reward":0,' "$tmp/traces"
check "the state of self-play is in the checkpoint" grep -q '"self_play":{"length":1' \
    "$tmp/k/whole/checkpoints/final/state.json"
check "none of it without the keys" "$KRL" train "${small[@]}" max_steps=1 log_path="$tmp/plain"
check "in the metrics" sh -c "! grep -q roles/ '$tmp/plain/metrics.jsonl'"
refuses "more proposals than problems" 2 'roles.proposals: expected at most batch_size' "$KRL" train "${small[@]}" \
    roles.proposals=3 log_path="$tmp/none"
refuses "a judge with nothing to compare" 2 'group_size of at least 2' "$KRL" train "${small[@]}" group_size=1 \
    roles.judge_reward=0.1 log_path="$tmp/none"
echo "1..$tap_n"
