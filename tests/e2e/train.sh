#!/usr/bin/env bash
# Trains the embedded model for real, in small: run directory, resume, interruption, and every refusal.
. "$(dirname "$0")/tap.bash"
[ -f models/tiny/model.safetensors ] || { skip "training" "no models/tiny"; exit 0; }

small=(lora_rank=0 max_tokens=400 batch_size=2 group_size=4 eval_every=0 sandbox.run_timeout_s=5)
train() { "$KRL" train "${small[@]}" "$@"; }
count() { wc -l <"$1"; }
value() { sed -n "$2p" "$1" | grep -o "\"$3\":[^,}]*" | cut -d: -f2; }

check "two steps of training" train log_path="$tmp/a" max_steps=2
for f in config.yaml logs.log metrics.jsonl traces.jsonl checkpoints.jsonl checkpoints/final/model.safetensors; do
    check "the run directory has $f" test -s "$tmp/a/$f"
done
check "TensorBoard file" sh -c "ls $tmp/a/tensorboard/events.out.tfevents.*"
check "one metrics line a step" test "$(count "$tmp/a/metrics.jsonl")" = 2
check "eight traces a step" test "$(count "$tmp/a/traces.jsonl")" = 16
check "sampler and trainer agree exactly" grep -q '"train/kl_sampler_trainer":0' "$tmp/a/metrics.jsonl"
check "the resolved configuration loads again" train --config "$tmp/a/config.yaml" log_path="$tmp/a"
check "a finished run trains no further" test "$(count "$tmp/a/metrics.jsonl")" = 2

# Resume: 1 + 1 steps give the weights of 2 steps when speed is out of the reward.
exact=(measure_performance=false save_every=1)
check "two steps at once" train "${exact[@]}" log_path="$tmp/b" max_steps=2
check "first of two steps" train "${exact[@]}" log_path="$tmp/c" max_steps=1
check "second of two steps" train "${exact[@]}" log_path="$tmp/c" max_steps=2
check "resumed weights equal uninterrupted ones" cmp "$tmp/b/checkpoints/final/model.safetensors" \
    "$tmp/c/checkpoints/final/model.safetensors"
check "rewards too" test "$(value "$tmp/b/metrics.jsonl" 2 reward/mean)" = "$(value "$tmp/c/metrics.jsonl" 2 reward/mean)"

# Interruption: Ctrl-C leaves a run that goes on from its last checkpoint.
train "${exact[@]}" log_path="$tmp/d" max_steps=50 >"$tmp/out" 2>&1 &
pid=$!
for _ in $(seq 300); do
    [ -s "$tmp/d/checkpoints.jsonl" ] && break
    sleep 0.2
done
kill -INT $pid
wait $pid
code=$?
check "Ctrl-C stops a run with code 130" test $code = 130
steps=$(tail -n 1 "$tmp/d/checkpoints.jsonl" | grep -o '"next_step":[0-9]*' | cut -d: -f2)
check "and it resumes" train "${exact[@]}" log_path="$tmp/d" max_steps="$((steps + 1))"
check "without a doubled step" test "$(grep -o '^{"step":[0-9]*' "$tmp/d/metrics.jsonl" | sort | uniq -d | wc -l)" = 0

# The reference worker dies in the middle of a run: it is restarted.
train "${exact[@]}" log_path="$tmp/w" max_steps=3 >"$tmp/out" 2>&1 &
pid=$!
sleep 4
pkill -KILL -P $pid python3 || pkill -KILL -P $pid -f kernelrl_worker
wait $pid
code=$?
check "a killed reference worker does not end the run" test $code = 0

check "LoRA: one step" train lora_rank=8 log_path="$tmp/l" max_steps=1
check "LoRA: the checkpoint is a PEFT adapter" test -s "$tmp/l/checkpoints/final/adapter_model.safetensors"
check "LoRA: the adapter starts another run" train lora_rank=8 log_path="$tmp/l2" max_steps=1 \
    load_checkpoint_path="$tmp/l/checkpoints/final"

# Bad input.
mkdir -p "$tmp/cfg"
printf 'learning_rate: fast\n' >"$tmp/cfg/type.yaml"
printf 'learnin_rate: 1.0\n' >"$tmp/cfg/key.yaml"
printf 'dataset_builder:\n  batch_size: 0\n' >"$tmp/cfg/range.yaml"
printf 'a: [1\n' >"$tmp/cfg/syntax.yaml"
refuses "a value of the wrong type" 2 'type.yaml:1:16: learning_rate: expected' train --config "$tmp/cfg/type.yaml"
refuses "an unknown key" 2 'key.yaml:1:1: .*learning_rate' train --config "$tmp/cfg/key.yaml"
refuses "a value out of range" 2 'range.yaml:2:15: dataset_builder.batch_size' train --config "$tmp/cfg/range.yaml"
refuses "malformed YAML" 2 'syntax.yaml:' train --config "$tmp/cfg/syntax.yaml"
refuses "a bad value on the command line" 2 'command line.*temperature' train temperature=hot
refuses "a missing configuration" 1 'nowhere.yaml' train --config "$tmp/nowhere.yaml"
refuses "a missing model" 2 'model_name' train model_name="$tmp/none" log_path="$tmp/x"
refuses "a rule between keys" 2 'end_problem' train start_problem=5 end_problem=3
refuses "no problem left" 2 'no problem' train log_path="$tmp/x" source=builtin start_problem=100000
refuses "a Python without torch" 1 'torch' env KERNELRL_PYTHON=/bin/false "$KRL" train log_path="$tmp/x"
mkdir -p "$tmp/nobwrap"
for t in gcc as ld cc1 collect2 python3 env sh; do
    p=$(command -v $t) && ln -s "$p" "$tmp/nobwrap/$t"
done
refuses "no bubblewrap" 1 'bubblewrap' env PATH="$tmp/nobwrap" KERNELRL_PYTHON=/usr/bin/python3 "$KRL" train log_path="$tmp/x"
if [ "$(id -u)" = 0 ]; then # root ignores permissions: a read-only file system shows the same
    mkdir "$tmp/ro" && mount -t tmpfs -o ro,size=64k tmpfs "$tmp/ro" 2>/dev/null
fi
if mountpoint -q "$tmp/ro"; then
    refuses "a read-only run directory" 1 'ro/run: cannot' train log_path="$tmp/ro/run"
    umount "$tmp/ro"
    mkdir "$tmp/full" && mount -t tmpfs -o size=256k tmpfs "$tmp/full"
    refuses "a full disk" 1 'No space left' train log_path="$tmp/full/run" max_steps=1
    check "a full disk leaves no half checkpoint" test ! -e "$tmp/full/run/checkpoints/final"
    umount "$tmp/full"
else
    skip "a read-only run directory" "cannot mount here"
    skip "a full disk" "cannot mount here"
fi
train log_path="$tmp/e" max_steps=3 >/dev/null 2>&1 &
pid=$!
sleep 2
refuses "two writers in one run directory" 1 'another process' train log_path="$tmp/e" max_steps=1
kill -INT $pid
wait $pid
echo "1..$tap_n"
