#!/usr/bin/env bash
# litellm against `kernelrl serve`, as openai/NAME and as hosted_vllm/NAME: answers, streams, and its own errors for ours.
. "$(dirname "$0")/serve.bash"
needs litellm
serve
export LITELLM_LOCAL_MODEL_COST_MAP=True LITELLM_TELEMETRY=False
"$python" tests/clients/serve_litellm.py "$url" "$key"
