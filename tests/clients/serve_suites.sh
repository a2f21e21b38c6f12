#!/usr/bin/env bash
# Server tests of vLLM and of llama.cpp against `kernelrl serve`. They are fetched when they are needed, into the folder
# KERNELRL_SUITES, and never kept here. tests/clients/suites/*.skips names those that do not apply, with the reason.
. "$(dirname "$0")/serve.bash"
needs openai pytest pytest_asyncio transformers jinja2 requests regex jsonschema aiohttp filelock
suites=${KERNELRL_SUITES:-}
if [ -z "$suites" ]; then
    skip "server tests of vLLM and llama.cpp" "KERNELRL_SUITES names no folder to fetch them into"
    echo "1..$tap_n"
    exit 0
elif ! "$python" tests/clients/suites_fetch.py "$suites" >"$tmp/fetch" 2>&1; then
    skip "server tests of vLLM and llama.cpp" "they cannot be fetched: $(tail -n 1 "$tmp/fetch")"
    echo "1..$tap_n"
    exit 0
fi
suites=$(cd "$suites" && pwd) here=$PWD

# Their models' names are aliases here.
names=(HuggingFaceH4/zephyr-7b-beta HuggingFaceTB/SmolLM2-135M-Instruct Qwen/Qwen3-0.6B Qwen/Qwen2.5-1.5B-Instruct
    Qwen/Qwen2-1.5B-Instruct facebook/opt-125m zephyr-lora zephyr-lora2 davinci-002 gpt-3.5-turbo gpt-3.5-turbo-instruct
    gpt-4.1 text-embedding-3-small)
aliases=()
for name in "${names[@]}"; do aliases+=(--alias "$name=models/tiny"); done

# Runs files of a suite. A test of theirs that no line of SKIPS names is a test here; one that is named and passes all the
# same, and a name that no test has, are failures.
suite() { # SKIPS FOLDER FILE...
    local skips=$1 folder=$2 word name text
    shift 2
    rm -f "$tmp/results"
    (cd "$folder" && SUITE_URL=$url SUITE_KEY=$key SUITE_MODEL=$here/models/tiny SUITE_SKIPS=$here/tests/clients/suites/$skips \
        SUITE_RESULTS=$tmp/results PYTHONPATH=$here/tests/clients PYTHONDONTWRITEBYTECODE=1 timeout 1200 "$python" -m pytest \
        -p suite_plugin "${options[@]}" -p no:cacheprovider -q --no-header --tb=short -o addopts= -o asyncio_mode=auto "$@") \
        >"$tmp/suite" 2>&1
    if ! grep -q '^passed' "$tmp/results" 2>"$tmp/out"; then
        cp "$tmp/suite" "$tmp/out"
        not_ok "${skips%.skips} runs"
        return
    fi
    while IFS=$'\t' read -r word name text; do
        case $word in
        passed) ok "${skips%.skips}: $name" ;;
        failed)
            tr '\t' '\n' <<<"$text" >"$tmp/out"
            not_ok "${skips%.skips}: $name"
            ;;
        esac
    done <"$tmp/results"
    echo "# ${skips%.skips}, ${*##*/}: $(tail -n 1 "$tmp/suite")"
    awk -F '\t' '$1 == "listed" { n["does not apply: " $3]++ } $1 == "skipped" { n["skipped: " $3]++ }
        END { for (w in n) print "#   " n[w] " " w }' "$tmp/results" | sort
}

serve_without_key --embeddings mean "${aliases[@]}"
options=(--noconftest)
v=tests/entrypoints
suite vllm.skips "$suites/vllm-0.33.0" $v/openai/completion/test_completion.py $v/openai/completion/test_prompt_validation.py \
    $v/openai/chat_completion/test_chat_completion.py $v/openai/chat_completion/test_chat.py \
    $v/openai/chat_completion/test_chat_echo.py $v/openai/chat_completion/test_chat_logit_bias_validation.py \
    $v/openai/test_return_token_ids.py $v/openai/test_return_tokens_as_ids.py $v/openai/test_chunked_prompt.py \
    $v/openai/models/test_models.py $v/serve/instrumentator/test_basic.py $v/serve/tokenize/test_tokenization.py
options=()
llama=$suites/llama_cpp_python-0.3.36/vendor/llama.cpp/tools/server/tests
suite llama.skips "$llama" unit/test_basic.py unit/test_chat_completion.py unit/test_completion.py unit/test_embedding.py \
    unit/test_tokenize.py
stop_server
key=sk-this-is-the-secret-key
pages=()
for page in http://localhost http://localhost:8080 http://127.0.0.1 http://127.0.0.1:3000 http://[::1] http://[::1]:3000; do
    pages+=(--cors-origin "$page")
done
serve "${pages[@]}" "${aliases[@]}"
suite llama_security.skips "$llama" unit/test_security.py
echo "1..$tap_n"
