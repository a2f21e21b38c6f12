#!/usr/bin/env bash
# openai-python against `kernelrl serve`: every call and every parameter that the server knows.
. "$(dirname "$0")/serve.bash"
needs openai
serve --embeddings mean --max-queue 4096
"$python" tests/clients/serve_openai.py "$url" "$key"
