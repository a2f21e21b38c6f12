#!/usr/bin/env bash
# Trains the embedded model for real, in small: run directory, resume, interruption, and every refusal.
. "$(dirname "$0")/tap.bash"
if [ ! -f models/tiny/model.safetensors ]; then
    skip "training" "models/tiny has no model.safetensors; make embedded-model builds it"
    echo "1..$tap_n"
    exit 0
fi

# An array, not a function: the process id of `"${train[@]}" &` must be that of the program, for signals.
train=("$KRL" train model_name=models/tiny lora_rank=0 max_tokens=400 batch_size=4 group_size=4 reward_speed_weight=0.3 num_correct_trials=2)
steps() { grep -c '"reward/mean":' "$1/metrics.jsonl"; } # how many steps a run has written
value() { sed -n "$2p" "$1/metrics.jsonl" | grep -o "\"$3\":[^,}]*" | cut -d: -f2; }
same() { [ -n "$1" ] && [ "$1" = "$2" ]; }
wait_for() { # SECONDS COMMAND...: until the command succeeds
    local end=$((SECONDS + $1))
    shift
    until "$@" 2>/dev/null; do
        [ $SECONDS -ge $end ] && return 1
        sleep 0.05
    done
}
at_least() { [ "$(steps "$1")" -ge "$2" ]; }

check "two steps of training" "${train[@]}" log_path="$tmp/a" max_steps=2
for f in config.yaml logs.log metrics.jsonl traces.jsonl.zst checkpoints.jsonl checkpoints/final/model.safetensors \
    checkpoints/final/config.json checkpoints/final/tokenizer.json checkpoints/final/optimizer.safetensors; do
    check "the run directory has $f" test -s "$tmp/a/$f"
done
check "TensorBoard file" sh -c "ls '$tmp'/a/tensorboard/events.out.tfevents.*"
check "one metrics line a step" test "$(steps "$tmp/a")" = 2
check "a trace an answer" test "$(zstdcat "$tmp/a/traces.jsonl.zst" | wc -l)" = 32
check "answers were trained on" grep -q '"train/tokens":[1-9]' "$tmp/a/metrics.jsonl"
check "sampler and trainer agree exactly" sh -c \
    "grep -q '\"train/kl_sampler_trainer\":0,' '$tmp/a/metrics.jsonl' &&
    ! grep -q '\"train/kl_sampler_trainer\":[^0n]' '$tmp/a/metrics.jsonl'"
check "the resolved configuration loads again" "$KRL" train --config "$tmp/a/config.yaml"
check "a finished run trains no further" test "$(steps "$tmp/a")" = 2
check "the checkpoint is a model" "${train[@]}" model_name="$tmp/a/checkpoints/final" log_path="$tmp/a2" max_steps=1

# Resume: 1 + 1 steps give the weights of 2 steps when speed is out of the reward.
exact=(measure_performance=false reward_speed_weight=0 save_every=1)
check "two steps at once" "${train[@]}" "${exact[@]}" log_path="$tmp/b" max_steps=2
check "first of two steps" "${train[@]}" "${exact[@]}" log_path="$tmp/c" max_steps=1
check "second of two steps" "${train[@]}" "${exact[@]}" log_path="$tmp/c" max_steps=2
check "and it says that it resumes" grep -q 'resuming .* from step 1' "$tmp/c/logs.log"
check "resumed weights equal uninterrupted ones" cmp "$tmp/b/checkpoints/final/model.safetensors" \
    "$tmp/c/checkpoints/final/model.safetensors"
check "rewards too" same "$(value "$tmp/b" 2 reward/mean)" "$(value "$tmp/c" 2 reward/mean)"

# Interruption: Ctrl-C leaves a run that goes on from its last checkpoint.
"${train[@]}" "${exact[@]}" log_path="$tmp/d" max_steps=200 >"$tmp/out" 2>&1 &
pid=$!
wait_for 60 test -s "$tmp/d/checkpoints.jsonl"
kill -INT $pid
wait $pid
code=$?
check "Ctrl-C stops a run with code 130" test $code = 130
next=$(tail -n 1 "$tmp/d/checkpoints.jsonl" | grep -o '"next_step":[0-9]*' | cut -d: -f2)
check "it has a checkpoint" test "${next:-0}" -gt 0
check "and it resumes" "${train[@]}" "${exact[@]}" log_path="$tmp/d" max_steps="$((next + 1))"
check "without a lost or doubled step" same "$(grep -o '^{"step":[0-9]*' "$tmp/d/metrics.jsonl" | cut -d: -f2 | xargs)" \
    "$(seq 0 "$next" | xargs)"

# Killed without warning, anywhere: the same.
"${train[@]}" "${exact[@]}" log_path="$tmp/k" max_steps=200 >"$tmp/out" 2>&1 &
pid=$!
wait_for 60 at_least "$tmp/k" 2
{ kill -KILL $pid && wait $pid; } 2>/dev/null
check "a killed run resumes" "${train[@]}" "${exact[@]}" log_path="$tmp/k" max_steps="$(($(steps "$tmp/k") + 1))"
check "and took the uninterrupted run's way" same "$(value "$tmp/k" 2 reward/mean)" "$(value "$tmp/b" 2 reward/mean)"

# The reference worker dies in the middle of a run: it is started again.
"${train[@]}" "${exact[@]}" log_path="$tmp/w" max_steps=4 >"$tmp/out" 2>&1 &
pid=$!
wait_for 60 at_least "$tmp/w" 1
worker=
for status in $(grep -lsE "^PPid:[[:space:]]+$pid\$" /proc/[0-9]*/status); do
    if grep -qas kernelrl_worker "${status%/status}/cmdline"; then worker=$(basename "${status%/status}"); fi
done
check "the reference worker runs" test -n "$worker"
kill -KILL "${worker:-$pid}"
wait $pid
code=$?
check "a killed reference worker does not end the run" test $code = 0
check "and the log tells of it" grep -q 'starting it again' "$tmp/w/logs.log"

check "LoRA: one step" "${train[@]}" lora_rank=8 log_path="$tmp/l" max_steps=1
check "LoRA: the checkpoint is a PEFT adapter" test -s "$tmp/l/checkpoints/final/adapter_model.safetensors"
check "LoRA: the adapter starts another run" "${train[@]}" lora_rank=8 log_path="$tmp/l2" max_steps=1 \
    load_checkpoint_path="$tmp/l/checkpoints/final"
check "LoRA: a KL penalty against the adapter that the run goes on from" "${train[@]}" lora_rank=8 log_path="$tmp/l3" max_steps=1 \
    load_checkpoint_path="$tmp/l/checkpoints/final" kl_penalty_coef=0.1 remove_constant_reward_groups=false
check "which at the first step is the policy itself" test "$(value "$tmp/l3" 1 train/kl_reference)" = 0
refuses "LoRA: an adapter without lora_rank" 2 'load_checkpoint_path.*lora_rank' "${train[@]}" log_path="$tmp/x" \
    load_checkpoint_path="$tmp/l/checkpoints/final"

# Bad configurations.
mkdir -p "$tmp/cfg"
printf 'learning_rate: fast\n' >"$tmp/cfg/type.yaml"
printf 'learning_rate: [1, 2]\n' >"$tmp/cfg/list.yaml"
printf 'dataset_builder: 3\n' >"$tmp/cfg/map.yaml"
printf 'learnin_rate: 1.0\n' >"$tmp/cfg/key.yaml"
printf 'dataset_builder:\n  batch_size: 0\n' >"$tmp/cfg/range.yaml"
printf 'a: [1\n' >"$tmp/cfg/syntax.yaml"
refuses "a value of the wrong type" 2 'type.yaml:1:16: learning_rate: expected' "${train[@]}" --config "$tmp/cfg/type.yaml"
refuses "a list for a number" 2 'list.yaml:1:1: learning_rate: expected.*list' "${train[@]}" --config "$tmp/cfg/list.yaml"
refuses "a number for a map" 2 'map.yaml:1:18: dataset_builder: expected' "${train[@]}" --config "$tmp/cfg/map.yaml"
refuses "an unknown key" 2 'key.yaml:1:1: .*learning_rate' "${train[@]}" --config "$tmp/cfg/key.yaml"
refuses "a value out of range" 2 'range.yaml:2:15: dataset_builder.batch_size' "${train[@]}" --config "$tmp/cfg/range.yaml"
refuses "malformed YAML" 2 'syntax.yaml:' "${train[@]}" --config "$tmp/cfg/syntax.yaml"
refuses "a bad value on the command line" 2 'command line.*temperature' "${train[@]}" temperature=hot
refuses "a missing configuration" 1 'nowhere.yaml' "${train[@]}" --config "$tmp/nowhere.yaml"
refuses "a rule between keys" 2 'end_problem' "${train[@]}" start_problem=5 end_problem=3
refuses "no problem left" 2 'no problem' "${train[@]}" log_path="$tmp/x" source=builtin start_problem=100000

# Bad models: each a copy of the embedded one with one thing wrong.
refuses "a missing model" 2 'model_name' "${train[@]}" model_name="$tmp/none" log_path="$tmp/x"
broken() { # NAME REGEX SHELL_COMMAND that spoils the copy in $m
    m=$tmp/broken
    rm -rf "$m" && cp -R models/tiny "$m" && chmod -R u+w "$m" && eval "$3"
    refuses "$1" 1 "$2" "${train[@]}" model_name="$m" log_path="$tmp/x"
}
# FILE OLD NEW: in place, byte for byte (a tensor's name keeps its length, so that the offsets hold).
replace() { LC_ALL=C sed -i "s/$2/$3/" "$1" && grep -qaF -- "$3" "$1"; }
broken "cut weights" 'model.safetensors: ' 'truncate -s 100000 "$m/model.safetensors"'
broken "weights with a header of nonsense" 'model.safetensors: ' \
    'printf "\377\377\377\377\377\377\377\177" | dd of="$m/model.safetensors" conv=notrunc status=none'
broken "a missing tensor" 'model.safetensors.*model.norm.weight' \
    'replace "$m/model.safetensors" "\"model.norm.weight\"" "\"model.morn.weight\""'
broken "a tensor of another shape" 'model.safetensors.*model\.[a-z_0-9.]*weight.*(shape|expected)' \
    'replace "$m/config.json" "\"intermediate_size\": [0-9]*" "\"intermediate_size\": 512"'
broken "an unknown architecture" 'config.json.*MambaForCausalLM' \
    'replace "$m/config.json" "Qwen3ForCausalLM" "MambaForCausalLM"'
broken "a configuration that is no JSON" 'config.json:' 'printf "{" >"$m/config.json"'
broken "no tokenizer" 'tokenizer.json' 'rm "$m/tokenizer.json"'
broken "a tokenizer without merges" 'tokenizer.json.*merges' 'replace "$m/tokenizer.json" "\"merges\"" "\"mergers\""'

# What the machine lacks.
refuses "a Python without torch" 1 'torch' env KERNELRL_PYTHON=/bin/false "${train[@]}" log_path="$tmp/x"
refuses "no bubblewrap" 1 'apt-get install bubblewrap.*sandbox.allow_weaker=true' \
    env KERNELRL_BWRAP=/nowhere/bwrap "${train[@]}" log_path="$tmp/x"
check "no bubblewrap, and sandbox.allow_weaker" env KERNELRL_BWRAP=/nowhere/bwrap \
    "${train[@]}" log_path="$tmp/weaker" max_steps=1 sandbox.allow_weaker=true
mkdir "$tmp/ro" "$tmp/full"
# Root may write anywhere, so that only a read-only file system shows what others meet.
if mount -t tmpfs -o ro,size=64k tmpfs "$tmp/ro" 2>/dev/null; then
    refuses "a read-only run directory" 1 'ro/run.*Read-only' "${train[@]}" log_path="$tmp/ro/run"
    umount "$tmp/ro"
elif [ "$(id -u)" != 0 ]; then
    chmod a-w "$tmp/ro"
    refuses "a read-only run directory" 1 'ro/run.*denied' "${train[@]}" log_path="$tmp/ro/run"
else
    skip "a read-only run directory" "cannot mount here"
fi
if mount -t tmpfs -o size=256k tmpfs "$tmp/full" 2>/dev/null; then
    refuses "a disk without room for a checkpoint" 1 'full/run: .*MB are free' "${train[@]}" log_path="$tmp/full/run" max_steps=1
    umount "$tmp/full"
    mount -t tmpfs -o size=70m tmpfs "$tmp/full"
    "${train[@]}" log_path="$tmp/full/run" max_steps=1 >"$tmp/said" 2>&1 & # and others fill it while it trains
    pid=$!
    wait_for 60 grep -q 'training problems' "$tmp/full/run/logs.log"
    cat /dev/zero >"$tmp/full/others" 2>/dev/null
    wait $pid
    code=$?
    check "a disk that runs full" sh -c "test $code = 1 && grep -q '^kernelrl: .*full/run/.*No space left' '$tmp/said'"
    check "a full disk leaves no half checkpoint" sh -c \
        "test -s '$tmp/full/run/config.yaml' && test ! -e '$tmp/full/run/checkpoints/final'"
    check "nor one in its checkpoint list" test ! -s "$tmp/full/run/checkpoints.jsonl"
    umount "$tmp/full"
else
    skip "a full disk" "cannot mount here"
fi
"${train[@]}" log_path="$tmp/e" max_steps=200 >"$tmp/first" 2>&1 &
pid=$!
wait_for 30 test -s "$tmp/e/config.yaml"
refuses "two writers in one run directory" 1 'e: another process' "${train[@]}" log_path="$tmp/e" max_steps=1
{ kill -KILL $pid && wait $pid; } 2>/dev/null
echo "1..$tap_n"
