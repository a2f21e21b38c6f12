#!/usr/bin/env bash
# kernelrl serve with the embedded model: what the OpenAI API and vLLM's additions to it promise, who may ask, clients that
# leave or are slow, adapters that change while requests run, and the end.
. "$(dirname "$0")/tap.bash"
if [ ! -f models/tiny/model.safetensors ]; then
    skip "serve" "models/tiny has no model.safetensors; make embedded-model builds it"
    echo "1..$tap_n"
    exit 0
fi
export tmp KERNELRL=$KRL
PYTHONPATH=tests/e2e python3 tests/e2e/serve_checks.py
