#!/usr/bin/env bash
# Models and data sets by name: the whole program against the Hub of tests/hub/server.py.
. "$(dirname "$0")/tap.bash"
if [ ! -f models/tiny/model.safetensors ]; then
    skip "models by name" "models/tiny has no model.safetensors; make embedded-model builds it"
    echo "1..$tap_n"
    exit 0
fi
commit=0123456789abcdef0123456789abcdef01234567
repo() { # KIND ORG/NAME: an empty repository, and $here its files
    here=$tmp/hub/repos/$1/$2/$commit
    mkdir -p "$here"
    printf '{"main": "%s"}' $commit >"$here/../refs.json"
}
repo models org/tiny
cp models/tiny/{config.json,model.safetensors,tokenizer.json} "$here"
repo datasets org/problems
"$KRL" problems show 1/1 >"$tmp/p.py"
python3 - "$tmp/p.py" >"$here/rows.jsonl" <<'PY'
import json, sys
code = open(sys.argv[1]).read()
for i in (1, 2, 3, 4):
    print(json.dumps({"code": code, "level": 1, "name": f"{i}_Copy", "problem_id": i}))
PY
coproc SERVER { exec python3 tests/hub/server.py "$tmp/hub"; }
read -r hub _ <&"${SERVER[0]}"
export HF_ENDPOINT=http://127.0.0.1:$hub HF_HOME=$tmp/home no_proxy=127.0.0.1
unset HF_HUB_CACHE HUGGINGFACE_HUB_CACHE HF_TOKEN HUGGING_FACE_HUB_TOKEN HF_HUB_OFFLINE TRANSFORMERS_OFFLINE
requests() { if [ -f "$tmp/hub/log" ]; then wc -l <"$tmp/hub/log"; else echo 0; fi; }
sample() { "$KRL" sample --prompt "Write a kernel." --temperature 0 --max-tokens 8 --json "$@" 2>>"$tmp/said"; }

sample --model models/tiny >"$tmp/want"
check "a folder answers" test -s "$tmp/want"
sample --model org/tiny >"$tmp/got"
check "sample --model ORG/NAME gives what the folder gives" cmp "$tmp/want" "$tmp/got"
n=$(requests)
HF_HUB_OFFLINE=1 sample --model "org/tiny@$commit" >"$tmp/got"
check "offline too" cmp "$tmp/want" "$tmp/got"
check "nothing is asked for twice" test "$(requests)" = "$n"
check "tokenize" "$KRL" tokenize --model org/tiny --text hello
refuses "a model that is not there" 2 '^kernelrl: --model: .*org/none.*check the name' "$KRL" tokenize --model org/none --text x
refuses "an unknown revision" 2 'model_name: .*no revision "v9"' \
    "$KRL" train model_name=org/tiny model_revision=v9 log_path="$tmp/x"
refuses "an adapter that is none" 1 'adapter.*full model' "$KRL" sample --model org/tiny --adapter org/tiny --prompt x
refuses "not cached and offline" 2 'HF_HUB_OFFLINE' env HF_HUB_OFFLINE=1 HF_HOME="$tmp/empty" \
    "$KRL" tokenize --model org/tiny --text x
train=("$KRL" train model_name=models/tiny max_steps=1 max_tokens=16 group_size=2 batch_size=1 measure_performance=false num_correct_trials=1)
check "train with model and problems by name" "${train[@]}" log_path="$tmp/a" model_name=org/tiny source=org/problems
check "eval a checkpoint over it" "$KRL" eval output_path="$tmp/eval.json" max_tokens=16 model_name=org/tiny source=org/problems \
    load_checkpoint_path="$tmp/a/checkpoints/final" measure_performance=false num_correct_trials=1
repo models org/adapter
cp "$tmp/a/checkpoints/final/"adapter_* "$here"
check "sample --adapter ORG/NAME" sample --model org/tiny --adapter org/adapter
check "problems of a data set" sh -c "'$KRL' problems list --source org/problems | grep -q '^4 problems'"
refuses "dataset_src: local" 2 'dataset_builder.source.*org/problems.*local' "${train[@]}" log_path="$tmp/x" \
    source=org/problems dataset_src=local
refuses "dataset_src: huggingface" 2 'dataset_builder.source.*ORGANISATION/NAME' "${train[@]}" log_path="$tmp/x" \
    source=builtin dataset_src=huggingface
refuses "dataset_src: huggingface without a source is KernelBench" 2 'ScalingIntelligence/KernelBench' \
    "${train[@]}" log_path="$tmp/x" dataset_src=huggingface
export HF_TOKEN=hf_never_shown
"$KRL" tokenize --model org/none --text x >"$tmp/shown" 2>&1
"$KRL" doctor >>"$tmp/shown" 2>&1
check "doctor says where models are looked up" \
    grep -q "^models .*$tmp/home/hub (2 there), then $HF_ENDPOINT (with a token)" "$tmp/shown"
check "doctor says which architectures are loaded" grep -q '^loads .*Qwen2ForCausalLM, Qwen3ForCausalLM, .* and [A-Za-z]*ForCausalLM$' "$tmp/shown"
check "the token is never shown" sh -c "! grep -rq hf_never_shown '$tmp/shown' '$tmp/said' '$tmp/a' '$tmp/home'"
exec {SERVER[1]}>&-
wait "$SERVER_PID"
echo "1..$tap_n"
