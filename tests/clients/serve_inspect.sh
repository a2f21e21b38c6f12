#!/usr/bin/env bash
# inspect-ai against `kernelrl serve`: a task with a scorer, as openai-api/SERVICE/NAME and as vllm/NAME.
. "$(dirname "$0")/serve.bash"
needs inspect_ai openai
serve
export INSPECT_LOG_DIR="$tmp/logs" INSPECT_DISPLAY=none KERNELRL_API_KEY=$key KERNELRL_BASE_URL="$url/v1" \
    VLLM_API_KEY=$key VLLM_BASE_URL="$url/v1" HOME="$tmp"
"$python" tests/clients/serve_inspect.py 2>"$tmp/errors" || tail -n 5 "$tmp/errors"
