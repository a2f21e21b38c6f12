#!/usr/bin/env bash
# lm-eval's local-completions against `kernelrl serve`: log-likelihoods are those that sampling gave, bit for bit.
. "$(dirname "$0")/serve.bash"
needs lm_eval lm_eval.models.openai_completions
serve
export HF_HOME="$tmp/home" HF_DATASETS_OFFLINE=1 HF_HUB_OFFLINE=1 OPENAI_API_KEY=$key
"$python" tests/clients/serve_lm_eval.py "$url" "$KRL" "$tmp" 2>"$tmp/errors" || tail -n 5 "$tmp/errors"
