#!/usr/bin/env bash
# kernelrl bench serve against a server whose replies and whose pace are known: numbers, kinds of failures, JSON.
. "$(dirname "$0")/tap.bash"
coproc FAKE { python3 tests/e2e/fake_openai.py 0.005; }
read -r port <&"${FAKE[0]}"
export OPENAI_API_KEY=secret no_proxy=127.0.0.1
load() { "$KRL" bench serve --port "$port" "$@" >"$tmp/json" 2>"$tmp/table"; }
holds() { # PYTHON: is true of the object r
    python3 - "$tmp/json" "$1" <<'END'
import json, sys
r = json.load(open(sys.argv[1]))
assert eval(sys.argv[2]), r
END
}

check "completions" load --num-prompts 20 --input-len 30 --output-len 9 --max-concurrency 4 --json --save-detailed
check "all of them" holds 'r["completed"] == 20 and r["failed"] == 0 and r["model_id"] == "good"'
check "tokens as usage counts them" holds 'r["total_input_tokens"] == 600 and r["total_output_tokens"] == 180'
check "never more at once than allowed" holds 'r["max_concurrent_requests"] <= 4 and r["max_concurrency"] == 4'
check "no piece comes before its time" holds 'min(r["latencies"]) >= 8 * 0.005 and r["mean_itl_ms"] >= 5'
check "one time between tokens less than tokens" holds 'all(len(x) == 8 for x in r["itls"])'
check "throughput is that of the whole time" holds 'abs(r["output_throughput"] * r["duration"] - 180) < 1e-6'
check "texts are kept" holds 'r["generated_texts"][0].split()[8] == "0-8"'
check "a table as vLLM prints it" grep -q '^Median TPOT (ms): \{24\}[0-9.]* *$' "$tmp/table"

check "chats" load --backend openai-chat --num-prompts 6 --output-len 5 --json --percentile-metrics ttft,e2el \
    --metric-percentiles 50,99.9
check "the role alone is no token" holds 'r["mean_ttft_ms"] >= 50'
check "percentiles that were asked for" holds '"p50_e2el_ms" in r and "p99.9_ttft_ms" in r and "mean_itl_ms" not in r'
check "whole answers" load --num-prompts 5 --output-len 4 --no-stream --json
check "have the latency alone" holds 'r["total_output_tokens"] == 20 and "mean_e2el_ms" in r and "mean_ttft_ms" not in r'

check "a rate" load --num-prompts 30 --input-len 4 --output-len 1 --request-rate 100 --json --save-detailed
check "is kept on the whole" holds 'max(r["start_times"]) - min(r["start_times"]) > 0.2 and r["request_rate"] == 100'
check "equal intervals" load --num-prompts 10 --input-len 4 --output-len 1 --request-rate 50 --burstiness inf --json \
    --save-detailed
check "are equal" holds 'all(b - a >= 0.018 for a, b in zip(sorted(r["start_times"]), sorted(r["start_times"])[2:]))'
check "goodput" load --model late --num-prompts 4 --output-len 2 --goodput ttft:100 --goodput e2el:60000 --json
check "nobody was good" holds 'r["request_goodput"] == 0 and r["completed"] == 4'

refuses "answers that differ" 1 'differ when asked again: +3' \
    "$KRL" bench serve --port "$port" --model fickle --num-prompts 3 --output-len 3 --verify 3
check "answers that do not" load --num-prompts 5 --output-len 3 --verify 5 --json
check "are none" holds 'r["different_answers"] == 0'
fails() { # NAME MODEL REGEX
    refuses "$1" 1 "$3" "$KRL" bench serve --port "$port" --model "$2" --num-prompts 3 --output-len 6
    cp "$tmp/out" "$tmp/said"
    check "and is counted" grep -q '^Failed requests: *3 *$' "$tmp/said"
}
fails "a full queue" full 'HTTP status 429: the queue is full'
fails "an error in the stream" breaks 'the engine has failed'
fails "a connection that ends" "hangs up" 'Error 0: .'
refuses "a wrong key" 1 'HTTP status 401: no key' env OPENAI_API_KEY=x "$KRL" bench serve --port "$port" --num-prompts 1
printf '{"prompt": "a b", "output_tokens": 3}\n\n{"prompt": "c"}\n' >"$tmp/prompts.jsonl"
check "prompts of a file" load --num-prompts 4 --output-len 1 --dataset-path "$tmp/prompts.jsonl" --json
check "in turn" holds 'r["total_output_tokens"] == 8 and r["total_input_tokens"] == 8'
printf '{"text": "a b"}\n' >"$tmp/bad.jsonl"
refuses "a file without prompts" 1 'bad.jsonl:1: prompt' "$KRL" bench serve --port "$port" --dataset-path "$tmp/bad.jsonl"
check "a field more" load --num-prompts 1 --output-len 1 --extra-body '{"max_tokens": 4}' --json
check "wins" holds 'r["total_output_tokens"] == 4'
refuses "nobody there" 1 'http://127.0.0.1:1/v1/models: ' "$KRL" bench serve --port 1
refuses "an unknown time" 2 'percentile-metrics: expected ttft, tpot, itl or e2el, got "x"' \
    "$KRL" bench serve --percentile-metrics ttft,x
refuses "a percentile of nothing" 2 'metric-percentiles: expected' "$KRL" bench serve --metric-percentiles 101
refuses "no rate" 2 'request-rate: expected a number above 0 or inf' "$KRL" bench serve --request-rate 0
refuses "details of no JSON" 2 'save-detailed: expected --json' "$KRL" bench serve --save-detailed
check "help" "$KRL" bench serve --help
exec {FAKE[1]}>&-
wait "$FAKE_PID"
echo "1..$tap_n"
