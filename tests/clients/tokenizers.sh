#!/usr/bin/env bash
# Vocabularies trained by Hugging Face's tokenizers with the pre-tokenizers of published models: kernelrl finds the same ids
# in random strings. KERNELRL_PYTHON names a Python that has tokenizers. STRINGS (3000) of each are compared.
. "$(dirname "$0")/../e2e/tap.bash"
python=${KERNELRL_PYTHON:-python3}
if ! why=$("$python" -c 'import tokenizers' 2>&1); then
    skip "tokenizers" "$(tail -n 1 <<<"$why")"
    echo "1..$tap_n"
    exit 0
fi
check "vocabularies are trained" "$python" tests/clients/random_tokenizers.py "$tmp/trained" "${STRINGS:-3000}"
for folder in "$tmp"/trained/*; do
    check "$(basename "$folder"): the same ids" "$KRL" tokenize --model "$folder" --check "$folder/rows.jsonl"
done
sed -i 's/"ids": \[/&0, /' "$tmp/trained/llama3/rows.jsonl"
refuses "other ids are found out" 1 'lines, [1-9][0-9]* mismatches' "$KRL" tokenize --model "$tmp/trained/llama3" \
    --check "$tmp/trained/llama3/rows.jsonl"
echo "1..$tap_n"
