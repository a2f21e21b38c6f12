#!/usr/bin/env bash
# The official client of the Tinker protocol (`tinker` on PyPI) against `kernelrl serve --tinker`: training, sampling,
# checkpoints, and a table of the public methods of its four clients. A server that is killed: serve_tinker_restart.sh.
. "$(dirname "$0")/serve.bash"
needs tinker numpy
key=tml-test
serve --tinker "$tmp/state" --alias Qwen/Qwen3-8B=models/tiny --train-tokens 64 --api-key tml-second
export TINKER_TELEMETRY=0 HF_HUB_OFFLINE=1 TINKER_BASE_URL=$url TINKER_API_KEY=$key TINKER_OTHER_KEY=tml-second
"$python" -W ignore tests/clients/serve_tinker.py "$PWD/models/tiny"
