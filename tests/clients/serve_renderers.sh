#!/usr/bin/env bash
# The client of renderers, which verifiers and prime-rl sample through, against `kernelrl serve`: tokens in, tokens out.
. "$(dirname "$0")/serve.bash"
needs renderers.client openai transformers
serve
HF_HUB_OFFLINE=1 "$python" tests/clients/serve_renderers.py "$url" "$key" models/tiny 2>"$tmp/errors" ||
    tail -n 5 "$tmp/errors"
