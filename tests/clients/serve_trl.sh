#!/usr/bin/env bash
# TRL's client of vLLM servers against `kernelrl serve`: samples, chats, a teacher's log-probabilities. TRL sends no key.
. "$(dirname "$0")/serve.bash"
needs torch trl.generation.vllm_client
serve_without_key --max-logprobs 100 --admin --logprobs-mode processed
HF_HUB_OFFLINE=1 "$python" tests/clients/serve_trl.py "$url" 2>"$tmp/errors" || tail -n 5 "$tmp/errors"
