#!/usr/bin/env bash
# Keys of train that only a whole run shows: where it begins, what it keeps, what it evaluates and draws.
. "$(dirname "$0")/tap.bash"
if [ ! -f models/tiny/model.safetensors ]; then
    skip "keys" "models/tiny has no model.safetensors; make embedded-model builds it"
    echo "1..$tap_n"
    exit 0
fi
train=("$KRL" train model_name=models/tiny lora_rank=0 max_tokens=40 batch_size=1 group_size=2 level=1 end_problem=4
    measure_performance=false num_correct_trials=1)
steps() { grep -o '^{"step":[0-9]*,"[^e]' "$1/metrics.jsonl" | grep -o '[0-9]*' | tr '\n' ' '; }

check "a run of three steps" "${train[@]}" log_path="$tmp/a" start_batch=2 max_steps=5 save_every=1 keep_checkpoints=1 \
    eval_every=5 eval_samples=5 tensorboard_log_per_level=false tensorboard_log_histograms_every=2
check "start_batch: it began at 2" test "$(steps "$tmp/a")" = "2 3 4 "
check "keep_checkpoints: the newest one, and the last" test "$(cd "$tmp/a/checkpoints" && echo *)" = "000004 final"
check "eval_samples: enough for pass@5" grep -qE '"eval/pass@5":[0-9]' "$tmp/a/metrics.jsonl"
check "tensorboard_log_per_level=false" sh -c "! grep -q per_level '$tmp/a/metrics.jsonl'"
check "tensorboard_log_histograms_every: of two steps in three" \
    test "$(cat "$tmp"/a/tensorboard/* | grep -ao 'Distributions/Rewards' | wc -l)" = 2
check "resume_from_batch" "${train[@]}" log_path="$tmp/a" max_steps=6 resume_from_batch=4
check "went on behind 4" grep -q 'from step 4' "$tmp/a/logs.log"
refuses "resume_from_batch: no such checkpoint" 2 'resume_from_batch.*step 3' "${train[@]}" log_path="$tmp/a" max_steps=6 \
    resume_from_batch=3
check "num_epochs: twice over three problems" "${train[@]}" log_path="$tmp/b" num_epochs=2 shuffle=false group_size=1 \
    batch_size=2 tensorboard_enabled=false eval_samples=1
check "shuffle=false: in their order, twice" sh -c "zstdcat '$tmp/b/traces.jsonl.zst' | grep -o '\"problem\":\"[^\"]*\"' |
    awk '{ s[NR] = \$0 } END { for (i = 1; i <= NR / 2; i++) if (s[i] != s[i + NR / 2]) exit 1; exit NR < 4 }'"
check "tensorboard_enabled=false" test ! -e "$tmp/b/tensorboard"
check "answers that all score the same" "$KRL" train model_name=models/tiny log_path="$tmp/none" max_steps=1 max_tokens=4 batch_size=2 \
    group_size=2 num_correct_trials=1
check "a step that teaches nothing has its line" grep -qE '^\{"step":0,.*"batch/constant_groups":2[,}]' "$tmp/none/metrics.jsonl"
echo "1..$tap_n"
