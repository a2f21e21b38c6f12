#!/usr/bin/env bash
# Data sets in Parquet, as pyarrow writes them and the Hub serves them: a corpus for retrieval, and problems.
. "$(dirname "$0")/../e2e/tap.bash"
python=${KERNELRL_PYTHON:-python3}
if ! "$python" -c 'import pyarrow' 2>/dev/null; then
    skip "Parquet" "$python has no pyarrow"
    echo "1..$tap_n"
    exit 0
fi
commit=0123456789abcdef0123456789abcdef01234567
repo() { # ORG/NAME: an empty data set, and $here its files
    here=$tmp/hub/repos/datasets/$1/$commit
    mkdir -p "$here/data"
    printf '{"main": "%s"}' $commit >"$here/../refs.json"
}
write() { # FILE, and rows as Python on standard input
    "$python" -c 'import sys, pyarrow, pyarrow.parquet as q
q.write_table(pyarrow.Table.from_pylist(eval(sys.stdin.read())), sys.argv[1])' "$1"
}
repo SakanaAI/AI-CUDA-Engineer-Archive
write "$here/data/level_1-00000-of-00001.parquet" <<'P'
[{"PyTorch_Code_Module": "class B:\n def forward(self, x):\n  return torch.tanh(x)", "CUDA_Code": "__global__",
  "Correct": True, "Level_ID": "level_1", "Op_Name": "22_Tanh", "CUDA_Speedup_Native": 2.5, "NCU_Profile": "long"},
 {"PyTorch_Code_Module": "class B", "CUDA_Code": "wrong", "Correct": False, "Level_ID": "level_1", "Op_Name": "22_Tanh"}]
P
repo org/problems
"$KRL" problems show 1/1 >"$tmp/p.py"
"$python" -c 'import sys
code = open(sys.argv[1]).read()
print([{"code": code, "level": 1, "name": f"{i}_Copy", "problem_id": i} for i in (1, 2, 3)])' "$tmp/p.py" |
    write "$here/data/level_1-00000-of-00001.parquet"
coproc SERVER { exec python3 tests/hub/server.py "$tmp/hub"; }
read -r hub _ <&"${SERVER[0]}"
export HF_ENDPOINT=http://127.0.0.1:$hub HF_HOME=$tmp/home no_proxy=127.0.0.1 KERNELRL_PYTHON=$python
unset HF_HUB_CACHE HUGGINGFACE_HUB_CACHE HF_TOKEN HF_HUB_OFFLINE
check "a corpus in Parquet" "$KRL" build-rag-index --model lexical --output "$tmp/one" --cuda-only
check "has the right answer and its speed" sh -c \
    "grep -q '^{\"backend\":\"cuda\".*22_Tanh.*2.5' '$tmp/one/records.jsonl' && ! grep -q wrong '$tmp/one/records.jsonl'"
check "problems in Parquet" sh -c "'$KRL' problems list --source org/problems | grep -q '^3 problems'"
check "with their code" sh -c "'$KRL' problems show 1/2 --source org/problems | cmp - '$tmp/p.py'"
exec {SERVER[1]}>&-
wait "$SERVER_PID"
echo "1..$tap_n"
