#!/usr/bin/env bash
# The charts of a run, read by TensorBoard's own reader: every number of metrics.jsonl is there.
. "$(dirname "$0")/../e2e/tap.bash"
python=${KERNELRL_PYTHON:-python3}
if [ ! -f models/tiny/model.safetensors ]; then
    skip "TensorBoard reads a run" "models/tiny has no model.safetensors; make embedded-model builds it"
elif ! "$python" -c 'import tensorboard.backend' 2>/dev/null; then
    skip "TensorBoard reads a run" "$python has no tensorboard"
else
    check "two steps of training" "$KRL" train model_name=models/tiny lora_rank=0 max_tokens=400 batch_size=4 group_size=4 \
        reward_speed_weight=0.3 num_correct_trials=2 log_path="$tmp/a" max_steps=2
    check "TensorBoard reads every number from it" "$python" tests/clients/read_events.py "$tmp/a"
fi
echo "1..$tap_n"
