#!/usr/bin/env bash
# The loop as a client of a server of the Tinker protocol: what it learns there has the bits of what it learns here,
# also when the client and the server are killed on the way.
. "$(dirname "$0")/tap.bash"
if [ ! -f models/tiny/model.safetensors ]; then
    skip "training on a server" "models/tiny has no model.safetensors; make embedded-model builds it"
    echo "1..$tap_n"
    exit 0
fi
export TINKER_API_KEY=tml-test
port=0
serve() { # starts the server; the next one has its port and its folder
    "$KRL" serve --model models/tiny --port "$port" --tinker "$tmp/state" --tinker-keep 1 --access-log off \
        --alias org/other=models/tiny --api-key "$TINKER_API_KEY" >"$tmp/server.log" 2>&1 &
    server=$!
    for _ in $(seq 600); do
        port=$(sed -n 's#.*is ready at http://[^:]*:\([0-9]*\)/v1.*#\1#p' "$tmp/server.log" | head -n 1)
        [ -n "$port" ] && break
        sleep 0.05
    done
    export TINKER_BASE_URL=http://127.0.0.1:$port
}
serve
trap 'kill -9 $server 2>/dev/null; rm -rf "$tmp"' EXIT

small=(model_name=models/tiny lora_rank=4 max_tokens=160 batch_size=2 group_size=4 measure_performance=false level=1
    num_correct_trials=1 end_problem=12 test_fraction=0.25 learning_rate=1e-3 max_steps=3 save_every=1)
there=(trainer=tinker server_model=org/other)
# The server's files of a checkpoint that a run names.
server_side() {
    local path
    path=$(python3 -c 'import json, sys; print(json.load(open(sys.argv[1]))["tinker_path"])' "$1/state.json") || return 1
    grep -l "\"$(basename "$path")\"" "$tmp"/state/checkpoints/*/checkpoint.json |
        xargs grep -l "\"$(echo "$path" | cut -d/ -f3)\"" | xargs dirname
}
same() { # HERE THERE CHECKPOINT: weights and moments
    local dir
    dir=$(server_side "$2/checkpoints/$3") && [ -n "$dir" ] || return 1
    cmp "$1/checkpoints/$3/adapter_model.safetensors" "$dir/adapter_model.safetensors" &&
        cmp "$1/checkpoints/$3/optimizer.safetensors" "$dir/optimizer.safetensors"
}
alike() { # NAME, RUN, RUN: both have it, with the same values
    local mine
    mine=$(of_metric "$2" "$1") && [ -n "$mine" ] && [ "$mine" = "$(of_metric "$3" "$1")" ]
}
of_metric() { # RUN NAME: its values, one a line
    python3 -c 'import json, sys
for line in open(sys.argv[1] + "/metrics.jsonl", encoding="utf-8"):
    if sys.argv[2] in line: print(json.loads(line)[sys.argv[2]])' "$1" "$2"
}

check "a run here" "$KRL" train "${small[@]}" eval_every=2 eval_samples=1 log_path="$tmp/here"
check "the same on a server" "$KRL" train "${small[@]}" "${there[@]}" eval_every=2 eval_samples=1 log_path="$tmp/there"
for at in 000001 000002 final; do check "has the same weights and moments at $at" same "$tmp/here" "$tmp/there" "$at"; done
files() { # HERE THERE CHECKPOINT: the adapter's files were downloaded
    cmp "$1/checkpoints/$3/adapter_model.safetensors" "$2/checkpoints/$3/adapter_model.safetensors" &&
        cmp "$1/checkpoints/$3/adapter_config.json" "$2/checkpoints/$3/adapter_config.json"
}
check "the last checkpoint has the files of the adapter" files "$tmp/here" "$tmp/there" final
check "and the others name it alone" test ! -e "$tmp/there/checkpoints/000002/adapter_model.safetensors"
for name in reward/mean train/loss train/grad_norm train/ratio_max eval/correct_rate; do
    check "and the same $name" alike $name "$tmp/here" "$tmp/there"
done
check "sampler and trainer were compared, and are equal" test "$(of_metric "$tmp/there" train/kl_sampler_trainer | sort -u)" = 0
check "the server keeps no copy of what was downloaded" sh -c "! grep -l '\"download-' '$tmp'/state/checkpoints/*/checkpoint.json"
check "a run that is done asks nobody" env TINKER_BASE_URL=http://127.0.0.1:1 "$KRL" train "${small[@]}" "${there[@]}" \
    eval_every=2 eval_samples=1 log_path="$tmp/there"

# Small leaves, several updates of a batch, old samples, a penalty, clips: losses that the protocol does not have.
hard=(algorithm=grpo num_substeps=2 update_epochs=2 kl_penalty_coef=0.05 train_tokens=512 clip_dual=3 warmup_steps=2
    max_staleness=1 learning_rate=5e-3)
lines() { [ -f "$1" ] && wc -l <"$1" || echo 0; }
wait_for() { # RUN N: until so many steps are done, or its process has ended
    while [ "$(lines "$1/metrics.jsonl")" -lt "$2" ] && kill -0 "$client" 2>/dev/null; do sleep 0.05; done
}
begin() {
    "$KRL" train "${small[@]}" "${there[@]}" "${hard[@]}" download_checkpoints=true log_path="$tmp/killed" >>"$tmp/killed.log" 2>&1 &
    client=$!
}
check "a run with much more in its updates" "$KRL" train "${small[@]}" "${hard[@]}" log_path="$tmp/hard"
begin
wait_for "$tmp/killed" 1
sleep 0.7
kill -9 "$client"
wait "$client" 2>/dev/null
begin
wait_for "$tmp/killed" 2
kill -9 "$server"
wait "$server" 2>/dev/null
sleep 1
serve
check "on a server, client and server killed on the way" wait "$client"
check "it has the same weights and moments" same "$tmp/hard" "$tmp/killed" final
for at in 000001 000002 final; do check "and the files of the adapter at $at" files "$tmp/hard" "$tmp/killed" "$at"; done
check "and saw the same rewards" alike reward/mean "$tmp/hard" "$tmp/killed"
check "its ratios left 1" sh -c "tail -n 1 '$tmp/killed/metrics.jsonl' | grep -q '\"train/ratio_max\":[1-9][0-9]*[.][0-9]*[1-9]'"
check "and its penalty 0" sh -c "tail -n 1 '$tmp/killed/metrics.jsonl' | grep -q '\"train/kl_reference\":[0-9.e-]*[1-9]'"

# A server's checkpoint answers, and another run begins with it.
path=$(python3 -c 'import json, sys; print(json.load(open(sys.argv[1]))["tinker_path"])' "$tmp/there/checkpoints/final/state.json")
asked=(model_name=models/tiny split=test num_samples=2 measure_performance=false level=1 end_problem=12 test_fraction=0.25
    max_tokens=160 num_correct_trials=1)
answers() { python3 -c 'import json, sys
for row in map(json.loads, open(sys.argv[1], encoding="utf-8")):
    if "problem" in row: print(row["problem"], row["sample"], repr(row["text"]))' "$1" | sort; }
same_answers() { [ "$(answers "$1" | sort -u | wc -l)" -gt 2 ] && [ "$(answers "$1")" = "$(answers "$2")" ]; }
check "a checkpoint of the server answers" "$KRL" eval sampler=tinker server_model=org/other checkpoint_path="$path" "${asked[@]}" \
    output_path="$tmp/asked.json"
check "as the same adapter does here" "$KRL" eval checkpoint_path="$tmp/here" "${asked[@]}" output_path="$tmp/mine.json"
check "with the same answers" same_answers "$tmp/asked.samples.jsonl" "$tmp/mine.samples.jsonl"
rm "$tmp/there/checkpoints/final/adapter_config.json"
check "a run that is done downloads an adapter that is missing" "$KRL" train "${small[@]}" "${there[@]}" eval_every=2 eval_samples=1 \
    log_path="$tmp/there"
check "and its run directory answers without the server" env TINKER_BASE_URL=http://127.0.0.1:1 "$KRL" eval checkpoint_path="$tmp/there" \
    "${asked[@]}" output_path="$tmp/loaded.json"
check "with the same answers" same_answers "$tmp/loaded.samples.jsonl" "$tmp/mine.samples.jsonl"
check "another run begins with it" "$KRL" train "${small[@]}" "${there[@]}" max_steps=1 load_checkpoint_path="$path" \
    log_path="$tmp/next"
check "as one begins with it here" "$KRL" train "${small[@]}" max_steps=1 log_path="$tmp/next_here" \
    load_checkpoint_path="$tmp/here/checkpoints/final"
check "and learns the same" same "$tmp/next_here" "$tmp/next" final

refuses "to answer from a checkpoint that is on the server" 2 'has no weights.*tinker://' "$KRL" eval \
    checkpoint_path="$tmp/there/checkpoints/000002" "${asked[@]}"
refuses "a model that the server does not have" 2 'has another base model' "$KRL" train "${small[@]}" trainer=tinker \
    server_model=org/none log_path="$tmp/none"
refuses "another key" 2 'TINKER_API_KEY' env TINKER_API_KEY=tml-other "$KRL" train "${small[@]}" "${there[@]}" log_path="$tmp/key"
refuses "a temperature" 2 'temperature.*expected 1' "$KRL" train "${small[@]}" "${there[@]}" temperature=0.5 log_path="$tmp/cold"
refuses "all weights" 2 'lora_rank.*1 or more' "$KRL" train "${small[@]}" "${there[@]}" lora_rank=0 log_path="$tmp/all"
refuses "an adapter of this machine" 2 'tinker://RUN/KIND/NAME' "$KRL" train "${small[@]}" "${there[@]}" \
    load_checkpoint_path="$tmp/here" log_path="$tmp/mine"
refuses "an address that nobody has" 1 'out of reach' env TINKER_BASE_URL=http://127.0.0.1:1 "$KRL" train "${small[@]}" \
    "${there[@]}" sampler_timeout_s=1 log_path="$tmp/nobody"
echo "1..$tap_n"
