#!/usr/bin/env bash
# Managing runs: in the background, watched, stopped, resumed, compared, deleted; and every short form of the justfile.
. "$(dirname "$0")/tap.bash"
runs=("$KRL" runs)
at=(--runs-dir "$tmp/runs")
refuses "no command" 2 '^usage' "${runs[@]}"
refuses "an unknown command" 2 'unknown command "lst"; did you mean "list"' "${runs[@]}" lst
refuses "one that is near nothing" 2 '^usage' "${runs[@]}" frobnicate
refuses "an option of another command" 2 'runs: --yes means nothing to disk; it is for clean' "${runs[@]}" disk --yes
check "no runs at all" "${runs[@]}" list "${at[@]}"
refuses "a run that is not there" 1 'x: no such run' "${runs[@]}" stop x "${at[@]}"
refuses "comparing one" 2 'runs compare: expected the NAMEs of two' "${runs[@]}" compare x "${at[@]}"
refuses "watching nobody" 2 'runs watch: expected the NAME' "${runs[@]}" watch "${at[@]}"
refuses "resuming nobody" 2 'runs resume: expected the NAME' "${runs[@]}" resume
refuses "stopping nobody" 2 'runs stop: expected the NAME of a run, or --all' "${runs[@]}" stop "${at[@]}"

# A run written by hand: figures that can be checked.
mkdir -p "$tmp/runs/done/checkpoints/final" "$tmp/runs/cut"
echo 'seed: 0' | tee "$tmp/runs/done/config.yaml" >"$tmp/runs/cut/config.yaml"
echo '{}' >"$tmp/runs/done/checkpoints/final/state.json"
printf '%s\n' '{"step":0,"reward/mean":0.5,"reward/std":0.1,"kernel/correct_rate":0.25,"kernel/compile_rate":1,"outcome/correct":2,"outcome/crash":6,"batch/samples":8,"batch/num_groups":2,"batch/constant_groups":2,"policy/answer_tokens":100,"time/device_hours":0.5,"time/generate_s":3,"time/verify_s":1,"time/train_s":0,"progress/fraction":0.5}' \
    '{"step":0,"eval/correct_rate":0.75}' \
    '{"step":1,"reward/mean":1.5,"reward/std":0,"kernel/correct_rate":0.75,"kernel/compile_rate":1,"outcome/correct":6,"outcome/wrong_output":2,"batch/samples":8,"batch/num_groups":2,"batch/constant_groups":1,"policy/answer_tokens":50,"time/device_hours":0.25,"progress/fraction":1}' \
    >"$tmp/runs/done/metrics.jsonl"
printf '{"step":0,"reward/mean":0.25,"progress/fraction":0.1}\n{"step":1,"rew' >"$tmp/runs/cut/metrics.jsonl"
printf 'line %s\n' 1 2 3 4 5 >"$tmp/runs/done/logs.log"
says() { # NAME REGEX COMMAND...
    local name=$1 regex=$2
    shift 2
    "$@" >"$tmp/said" 2>&1
    cp "$tmp/said" "$tmp/out"
    check "$name" grep -qE "$regex" "$tmp/said"
}
says "list" '^done +finished +2 +100 % +1.500 +75.0 %' "${runs[@]}" list "${at[@]}"
check "a half-written line does not count" grep -qE '^cut +stopped +1 +10 %' "$tmp/said"
says "list --json" '"name":"done".*"state":"finished".*"steps":2' "${runs[@]}" list --json "${at[@]}"
says "status: nothing runs" '^nothing is running' "${runs[@]}" status "${at[@]}"
says "summary adds up" '^done +finished +2 +0.750 h +16 +1200 +16 +8 +75/ 25/  0$' "${runs[@]}" summary "${at[@]}"
says "metrics" '^ +1 +1.500 \+- 0.000 +100.0 % +75.0 %' "${runs[@]}" metrics done "${at[@]}"
says "uniform" '3 of 4 groups had equal scores; all of them in 1 of 2 steps' "${runs[@]}" uniform done "${at[@]}"
says "compare" '^reward/mean +1 +0.25$' "${runs[@]}" compare done cut "${at[@]}"
check "and their evaluations" grep -qE '^eval/correct_rate +0.75 +-$' "$tmp/said"
says "watch" '^reward     ▁█ +1.500' "${runs[@]}" watch done --once "${at[@]}"
check "the time split" grep -q 'sampling 75 %.*verdicts 25 %' "$tmp/said"
"${runs[@]}" logs done -n 2 "${at[@]}" >"$tmp/said"
check "logs" test "$(paste -sd, "$tmp/said")" = "line 4,line 5"
says "disk" 'in 2 runs' "${runs[@]}" disk "${at[@]}"
printf '%s\n' '2026-01-01T00:00:00Z info step' '2026-01-01T00:00:09Z error the disk: No space left' >"$tmp/runs/cut/logs.log"
says "one that ended with an error" '^cut +failed +1 +10 %' "${runs[@]}" list "${at[@]}"
says "status says which" '^  the disk: No space left' "${runs[@]}" status cut "${at[@]}"
says "so does watch" '^the disk: No space left' "${runs[@]}" watch cut --once "${at[@]}"
refuses "a run that cannot begin" 1 'rag_index_path: .*none: no index here' "$KRL" train model_name=models/tiny \
    log_path="$tmp/runs/none" prompt_option=raicl rag_index_path="$tmp/none" max_steps=1
says "has said why" '^  dataset_builder.rag_index_path: .*no index here' "${runs[@]}" status none "${at[@]}"
rm -r "$tmp/runs/none" "$tmp/runs/cut/logs.log"
refuses "stopping what does not run" 1 'cut: is not running' "${runs[@]}" stop cut "${at[@]}"
says "stopping all of none" 'nothing is running' "${runs[@]}" stop --all "${at[@]}"
says "clean asks" 'delete .*cut .*kept' sh -c "echo n | '$KRL' runs clean cut --runs-dir '$tmp/runs' | tr '\n' ' '"
check "no is no" test -f "$tmp/runs/cut/config.yaml"
check "clean --yes" "${runs[@]}" clean cut --yes "${at[@]}"
check "it is gone" test ! -e "$tmp/runs/cut"
echo '{"step": oops}' >>"$tmp/runs/done/metrics.jsonl" && echo '{"step":3}' >>"$tmp/runs/done/metrics.jsonl"
refuses "a damaged line is named" 1 'done/metrics.jsonl' "${runs[@]}" list "${at[@]}"
rm -r "$tmp/runs/done"

# Every short form. With `just` the recipes run; without it what they call does, and the justfile is looked at.
just=$(command -v just || { [ -x .venv/bin/just ] && echo .venv/bin/just; })
export KERNELRL=$KRL RUNS_DIR=$tmp/runs
recipe() { if [ -n "$just" ]; then PATH=$(dirname "$just"):$PATH "$just" "$@"; else tools/just "$@"; fi; }
for r in default train train-kevin train-raicl train-config resume logs logs-tail metrics watch-metrics watch-kevin summary \
    list disk status stop stop-all tensorboard tensorboard-all clean uniform-warnings build-rag-index \
    build-rag-index-triton build-rag-index-cuda; do
    if ! grep -qE "^$r( |:)" justfile; then echo "$r"; fi
done >"$tmp/missing"
check "the justfile has every recipe" test ! -s "$tmp/missing"
if [ -n "$just" ]; then
    check "just reads it" "$just" --list
else
    skip "just reads it" "just is not installed (tools/setup just); what its recipes call is tested below"
fi
refuses "just stop without a name" 2 'expected the name of a run' recipe stop
refuses "just train-raicl without an index" 1 'no index in' env RAG_INDEX_DIR="$tmp/none" tools/just train-raicl x
refuses "just train-config with a file that is not there" 1 'nowhere.yaml: no such file' recipe train-config nowhere.yaml x
check "tools/just alone names all recipes" sh -c "tools/just | sed -n 's/^  \([a-z-]*\) .*/\1/p' | sort >'$tmp/named' &&
    sed -nE 's/^([a-z-]+)( .*)?:$/\1/p' justfile | sort | cmp - '$tmp/named'"
refuses "an unknown recipe" 2 'no recipe "trian"' tools/just trian
if [ ! -f models/tiny/model.safetensors ]; then
    skip "runs in the background" "models/tiny has no model.safetensors; make embedded-model builds it"
    echo "1..$tap_n"
    exit 0
fi
small=(model_name=models/tiny lora_rank=0 max_tokens=100 dataset_builder.batch_size=1 dataset_builder.group_size=2
    dataset_builder.measure_performance=false dataset_builder.num_correct_trials=1 reward_speed_weight=0)
printf 'max_steps: 100000\n' >"$tmp/c.yaml"
wait_until() { # COMMAND...: within a minute
    for _ in $(seq 600); do
        "$@" >/dev/null 2>&1 && return
        sleep 0.1
    done
    return 1
}
stepped() { grep -q '"reward/mean"' "$tmp/runs/$1/metrics.jsonl"; }
says "just train-config CONFIG run=NAME" 'training in the background' recipe train-config "$tmp/c.yaml" run=bg "${small[@]}"
check "steps are made" wait_until stepped bg
says "just status" '^bg +running .*process [0-9]+' recipe status
says "just list" '^bg +running' recipe list
refuses "two runs on one directory" 1 'another process is training' "$KRL" train --config "$tmp/c.yaml" "${small[@]}" \
    log_path="$tmp/runs/bg"
refuses "clean of a running one" 1 'is running; stop it first' "${runs[@]}" clean bg --yes "${at[@]}"
says "just watch-metrics" 'reward' recipe watch-metrics bg --once
says "just watch NAME" 'reward' recipe watch bg --once
says "just stop NAME" 'bg: stopped after [0-9]+ steps' recipe stop bg
says "just status: it is gone" 'nothing is running' recipe status
steps=$("${runs[@]}" list --json "${at[@]}" | grep -o '"steps":[0-9]*' | cut -d: -f2)
says "just resume NAME" 'training in the background' recipe resume bg max_steps=$((steps + 2))
finished() { [ -f "$tmp/runs/bg/checkpoints/final/state.json" ]; }
check "it goes on to its end" wait_until finished
check "from where it was" grep -q "resuming .*bg from step $steps" "$tmp/runs/bg/logs.log"
wait_until sh -c "'$KRL' runs list --runs-dir '$tmp/runs' | grep -q 'bg .*finished'"
says "just logs NAME follows to the end" "step $((steps + 2))/$((steps + 2))" timeout 20 tools/just logs bg
says "just logs-tail NAME n=1" 'done' recipe logs-tail bg n=1
says "just metrics" '^ +0 ' recipe metrics run=bg
says "just watch-kevin" 'turns' recipe watch-kevin bg --once
says "just summary" '^bg +finished' recipe summary
says "just disk" 'in 1 runs' recipe disk
says "just uniform-warnings" 'groups had equal scores' recipe uniform-warnings bg
says "just stop-all" 'nothing is running' recipe stop-all
says "just eval" 'problems, .* samples' recipe eval bg level=1 end_problem=1 max_tokens=100
mkdir "$tmp/bin" && printf '#!/bin/sh\necho "board $*"\n' >"$tmp/bin/tensorboard" && chmod +x "$tmp/bin/tensorboard"
PATH=$tmp/bin:$PATH says "just tensorboard NAME port=N" "board --logdir .*bg/tensorboard --port 7007" recipe tensorboard bg port=7007
PATH=$tmp/bin:$PATH says "just tensorboard-all" "board --logdir $tmp/runs --port 6006" recipe tensorboard-all
index=(--corpus generator --count 8 --no-verify --model lexical)
check "just build-rag-index output=DIR" recipe build-rag-index output="$tmp/index" "${index[@]}"
echo '{"pytorch_code": "p", "kernel_code": "k", "backend": "triton"}' >"$tmp/pairs.jsonl"
pairs=(--corpus "$tmp/pairs.jsonl" --model lexical)
check "just build-rag-index-triton" recipe build-rag-index-triton output="$tmp/t" "${pairs[@]}"
refuses "just build-rag-index-cuda leaves Triton out" 1 'no record' recipe build-rag-index-cuda output="$tmp/t2" "${pairs[@]}"
for config in rl_kernelbench rl_kernelbench_kevin rl_kernelbench_raicl; do
    r=train${config#rl_kernelbench} && r=${r/_/-}
    if [ ! -f configs/$config.yaml ]; then
        skip "just $r" "configs/$config.yaml is not there"
        continue
    fi
    says "just $r NAME" 'training in the background' env RAG_INDEX_DIR="$tmp/index" tools/just "$r" "$r" "${small[@]}" \
        dataset_builder.source=builtin dataset_builder.backend=c max_steps=1 max_turns=2 prompt_option=zero_shot
    check "just stop-all ends it" wait_until sh -c "'$KRL' runs stop --all --runs-dir '$tmp/runs' | grep -q 'nothing is running'"
done
says "just train-kevin NAME rag_index=DIR" 'training in the background' recipe train-kevin kevin-rag rag_index="$tmp/index" \
    "${small[@]}" dataset_builder.source=builtin dataset_builder.backend=c max_steps=1 max_turns=1
check "retrieves examples" wait_until grep -q '8 records, embedded by lexical' "$tmp/runs/kevin-rag/logs.log"
check "just stop-all ends it, too" wait_until sh -c "'$KRL' runs stop --all --runs-dir '$tmp/runs' | grep -q 'nothing is running'"
# No recipe without a test: those named above, and those the loop over configurations runs.
{
    grep -oE '(recipe|tools/just) [a-z][a-z-]*' "$0" | cut -d' ' -f2
    printf '%s\n' default train train-kevin train-raicl
} | sort -u >"$tmp/tried"
grep -oE '^[a-z][a-z-]*[a-z]( |:)' justfile | tr -d ' :' | grep -v '^set$' | sort -u >"$tmp/recipes"
check "every recipe of the justfile is tried here" test -s "$tmp/recipes" -a -z "$(comm -23 "$tmp/recipes" "$tmp/tried")"
says "just clean NAME --yes" 'bg: deleted' recipe clean bg --yes
refuses "a run that ends at once says why" 1 'it ended at once: .*no directory' "$KRL" train --detach model_name="$tmp/none" \
    log_path="$tmp/runs/bad"
echo "1..$tap_n"
