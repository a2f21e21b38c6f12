#!/usr/bin/env bash
# A run directory on a disk that is too small: refused at once where no checkpoint fits; ended with a message where the
# disk fills up; and gone on with, exactly, when there is room again.
. "$(dirname "$0")/../e2e/tap.bash"
disk=$tmp/disk
mkdir "$disk"
if [ ! -f models/tiny/model.safetensors ]; then
    skip "a full disk" "models/tiny has no model.safetensors; make embedded-model builds it"
elif ! why=$(mount -t tmpfs -o size=40m none "$disk" 2>&1); then
    skip "a full disk" "no disk of our own can be mounted: $why"
else
    trap 'umount "$disk"; rm -rf "$tmp"' EXIT
    train=("$KRL" train model_name=models/tiny lora_rank=0 max_tokens=200 batch_size=2 group_size=4 measure_performance=false
        num_correct_trials=1 level=1 end_problem=8 save_every=1 max_steps=3)
    refuses "no room for a checkpoint: said before training" 1 "$disk/run: .* are free, and a checkpoint takes" \
        "${train[@]}" log_path="$disk/run"
    check "and nothing is left" test ! -e "$disk/run/checkpoints"
    mount -o remount,size=80m "$disk"
    refuses "room for one: the second one's file is named" 1 "checkpoints/000002.tmp/.*: cannot write: No space left" \
        "${train[@]}" log_path="$disk/run"
    check "the first is whole" test -s "$disk/run/checkpoints/000001/optimizer.safetensors"
    mount -o remount,size=400m "$disk"
    check "with room again it goes on" "${train[@]}" log_path="$disk/run"
    check "the undisturbed run" "${train[@]}" log_path="$tmp/whole"
    check "has the same weights" \
        cmp "$disk/run/checkpoints/final/model.safetensors" "$tmp/whole/checkpoints/final/model.safetensors"
    mount -o remount,size=220m "$disk" # full, but for less than a report
    head -c 400m /dev/zero >"$disk/filler" 2>/dev/null
    refuses "a report that does not fit" 1 "$disk/report.*: cannot (write|append): No space left" "$KRL" eval model_name=models/tiny \
        max_tokens=200 measure_performance=false num_correct_trials=1 level=1 end_problem=8 output_path="$disk/report.json"
    refuses "an index that does not fit" 1 "$disk/index.*: cannot (write|create).*: No space left" \
        "$KRL" build-rag-index --model lexical --output "$disk/index" --corpus generator --count 96 --no-verify
fi
echo "1..$tap_n"
