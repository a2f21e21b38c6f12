#!/usr/bin/env bash
# A run whose children are killed while it judges. Where the reference's Python is killed, what lost its verdict by that is
# judged again, and the run ends as the one that nothing disturbed. Where any child is killed (jails, compilers, answers:
# a killed answer has crashed, whoever killed it), the run goes on to its end.
. "$(dirname "$0")/../e2e/tap.bash"
if [ ! -f models/tiny/model.safetensors ]; then
    skip "killed children" "models/tiny has no model.safetensors; make embedded-model builds it"
    echo "1..$tap_n"
    exit 0
fi
train=("$KRL" train model_name=models/tiny lora_rank=0 max_tokens=200 batch_size=4 group_size=4 measure_performance=false
    num_correct_trials=1 level=1 end_problem=24 save_every=0 max_steps=16)
# Without times. An answer that reaches far beyond its arrays crashes or is out of bounds, as the memory around it lies.
no_times() { sed -E 's/"(time\/[a-z_]+|outcome\/(crash|out_of_bounds))":[^,}]*,?//g' "$1/metrics.jsonl"; }
children() { # PID: those of the process and theirs, without itself
    local child
    for child in $(cat /proc/"$1"/task/*/children 2>/dev/null); do
        echo "$child"
        children "$child"
    done
}
steps() { grep -c . "$1/metrics.jsonl" 2>/dev/null; }
# True for a Python that is at work, so that somebody waits for it. One that is killed when nobody needs it any more is not
# started again.
busy_python() { [[ $(cat "/proc/$1/stat" 2>/dev/null) == *"(python"*") R "* ]]; }
pick() { # PID python|any: one child that may be killed
    local all=() child
    for child in $(children "$1"); do
        if [ "$2" = any ] || busy_python "$child"; then all+=("$child"); fi
    done
    [ ${#all[@]} -gt 0 ] && picked=${all[RANDOM % ${#all[@]}]}
}
disturb() { # DIR SEED python|any: a run in which one child a step is killed, at any moment of it, from the second step on
    local pid at=1 picked killed=0
    RANDOM=$2
    "${train[@]}" log_path="$1" >"$tmp/said" 2>&1 &
    pid=$!
    while kill -0 $pid 2>/dev/null; do
        sleep 0.02
        [ "$(($(steps "$1")))" -ge $at ] || continue
        sleep "$(awk -v r=$RANDOM 'BEGIN { printf "%.3f", r / 32767 * 0.5 }')"
        until pick $pid "$3"; do
            kill -0 $pid 2>/dev/null || break
            sleep 0.01
        done
        if [ -n "$picked" ] && kill -KILL "$picked" 2>/dev/null; then killed=$((killed + 1)); fi
        picked=
        at=$(($(steps "$1") + 1))
    done
    echo "$killed killed" >>"$tmp/said"
    wait $pid && [ $killed -ge 3 ]
}
same() {
    cmp <(no_times "$1") <(no_times "$tmp/whole") &&
        cmp "$1/checkpoints/final/model.safetensors" "$tmp/whole/checkpoints/final/model.safetensors"
}
check "the undisturbed run" "${train[@]}" log_path="$tmp/whole"
check "has metrics" test -n "$(no_times "$tmp/whole")"
for seed in 1 2; do
    check "the reference's Python is killed (seed $seed): the run ends" disturb "$tmp/run$seed" $seed python
    cat "$tmp/said" >>"$tmp/said.all"
    check "with the same weights and metrics" same "$tmp/run$seed"
done
check "with a warning" grep -q 'starting it again' "$tmp/said.all"
check "any child is killed: the run ends" disturb "$tmp/run3" 3 any
check "after all its steps" test "$(steps "$tmp/run3")" = 16
echo "1..$tap_n"
