#!/usr/bin/env bash
# An index that kernelrl wrote, read by FAISS: the same vectors, and the same neighbours.
. "$(dirname "$0")/../e2e/tap.bash"
python=${KERNELRL_PYTHON:-python3}
if ! "$python" -c 'import faiss' 2>/dev/null; then
    skip "FAISS reads the index" "$python has no faiss"
    echo "1..$tap_n"
    exit 0
fi
check "an index of the generator's pairs" \
    "$KRL" build-rag-index --model lexical --output "$tmp/gen" --corpus generator --count 96 --no-verify
check "FAISS reads the index and finds the same" "$python" - "$tmp/gen" "$KRL" <<'PY'
import json, subprocess, sys
import faiss, numpy
index = faiss.read_index(sys.argv[1] + "/index.faiss")
records = [json.loads(line) for line in open(sys.argv[1] + "/records.jsonl")]
assert index.ntotal == len(records) and index.metric_type == faiss.METRIC_INNER_PRODUCT
vectors = index.reconstruct_n(0, index.ntotal)
assert numpy.allclose((vectors ** 2).sum(1), 1, atol=1e-5)
# A record's own module as the query: FAISS searches with its vector, kernelrl with its text.
for i in (0, 17, 60):
    open(sys.argv[1] + "/1_Q.py", "w").write(records[i]["pytorch_code"])
    out = subprocess.run([sys.argv[2], "query-rag-index", "--index", sys.argv[1], "--problem", sys.argv[1] + "/1_Q.py",
                          "-k", "1", "--keep-copies", "--json"], capture_output=True, text=True, check=True).stdout
    score, ids = index.search(vectors[i:i + 1], 1)
    ours = json.loads(out.splitlines()[0])
    assert ours["id"] == ids[0][0] and abs(ours["score"] - score[0][0]) < 1e-5, (ours, ids, score)
PY
echo "1..$tap_n"
