#!/usr/bin/env bash
# The command line as a newcomer meets it.
. "$(dirname "$0")/tap.bash"
check "--help" "$KRL" --help
check "--version" "$KRL" --version
refuses "no command" 2 '^usage:' "$KRL"
refuses "an unknown command" 2 'unknown command "trian"; did you mean "train"' "$KRL" trian
refuses "one that is near nothing" 2 'kernelrl help lists the commands' "$KRL" frobnicate
refuses "a model without its key" 2 'did you mean model_name=models/tiny' "$KRL" eval models/tiny
refuses "a run that is not there" 2 'no run "runs/nobody" here' "$KRL" eval checkpoint_path=runs/nobody
for c in train sft eval corpus; do check "$c --help" "$KRL" $c --help; done
refuses "an unknown device" 2 'device: expected cpu, cuda or cuda:N' "$KRL" train device=gpu
refuses "sft: an unknown device" 2 'device: expected cpu, cuda or cuda:N' "$KRL" sft device=cuda:x data=d
refuses "an unknown dtype" 2 'dtype: expected' "$KRL" train dtype=fp8
refuses "sample: an unknown dtype" 2 'dtype: expected auto, f32 or bf16' "$KRL" sample --model m --prompt p --dtype half
refuses "sample: an unknown device" 2 'expected cpu, cuda or cuda:N' "$KRL" sample --model m --prompt p --device 0
refuses "a plugin that is not there" 3 'KERNELRL_CUDA_PLUGIN=/absent.so: no such file' \
    env KERNELRL_CUDA_PLUGIN=/absent.so "$KRL" sft model_name=models/tiny device=cuda data=d output="$tmp/s"
check "problems list gives one object a line" sh -c "$KRL problems list --json | head -n 1 | grep -q '^{.*}\$'"
check "the built-in set has at least 100 problems" sh -c "test \$($KRL problems list --json | wc -l) -ge 100"
check "at least 40 of them are held out" sh -c "test \$($KRL problems list --json | grep -c '\"split\": *\"test\"') -ge 40"
if [ -f models/tiny/model.safetensors ]; then
    refuses "sft without data" 2 'data' "$KRL" sft output="$tmp/s" model_name=models/tiny
    printf '{"prompt": "a", "completion": 3}\n' >"$tmp/bad.jsonl"
    refuses "sft: a bad row is named" 1 'bad.jsonl:1.*completion' \
        "$KRL" sft output="$tmp/s" model_name=models/tiny data="$tmp/bad.jsonl"
    printf '{"prompt": "a"\n' >"$tmp/cut.jsonl"
    refuses "sft: a cut row is named" 1 'cut.jsonl:1' \
        "$KRL" sft output="$tmp/s" model_name=models/tiny data="$tmp/cut.jsonl"
    say() { "$KRL" sample --model models/tiny --prompt 'Add two vectors.' --max-tokens 60 --json "$@" 2>>"$tmp/said"; }
    all_are_greedy() {
        say --temperature 0 >"$tmp/greedy" && say --n 3 --min-p 1 >"$tmp/three" &&
            [ "$(wc -l <"$tmp/three")" = 3 ] && [ "$(sort -u "$tmp/three")" = "$(cat "$tmp/greedy")" ]
    }
    check "sample --n 3 --min-p 1: three times the most probable answer" all_are_greedy
    memory_changes_nothing() {
        say --n 5 --min-p 0.02 >"$tmp/roomy" && say --n 5 --min-p 0.02 --kv-memory 2000000 >"$tmp/tight" &&
            [ "$(sort -u "$tmp/roomy" | wc -l)" -gt 1 ] && cmp -s "$tmp/roomy" "$tmp/tight"
    }
    check "sample --kv-memory: little memory, the same answers" memory_changes_nothing
    refuses "sample --kv-memory: too little memory for one answer" 1 'KV cache.*budget is 1000 bytes' \
        "$KRL" sample --model models/tiny --prompt x --kv-memory 1000
    refuses "sample: min-p out of range" 2 'min-p: expected a number from 0 to 1' \
        "$KRL" sample --model models/tiny --prompt x --min-p 2
else
    skip "sft refuses bad rows" "models/tiny has no model.safetensors; make embedded-model builds it"
fi
refuses "the demo on a GPU that is not there" 3 'device cuda:999' env DEVICE=cuda:999 tools/demo log_path="$tmp/demo"
# tools/demo itself, with a program in the place of kernelrl that writes down where it was told to run, and is interrupted.
mkdir -p "$tmp/home/tools" "$tmp/home/build"
cp tools/demo "$tmp/home/tools/"
cat >"$tmp/home/build/kernelrl" <<'SH'
#!/bin/sh
for a in "$@"; do case $a in log_path=*) path=${a#log_path=} ;; esac; done # the last one counts
echo "$path" >>told
exit 130
SH
chmod +x "$tmp/home/build/kernelrl"
a_demo_is_gone_on_with() (
    cd "$tmp/home"
    demo() { DEVICE=$device tools/demo "$@" 2>>said || true; }
    device=cpu demo seed=1
    device=cpu demo seed=1             # the same one
    device=cuda:1 demo seed=1          # on another device
    device=cpu demo seed=1 max_steps=2 # with other arguments
    device=cpu demo seed=1 log_path=x  # as the user says
    first=$(sed -n 1p told)
    [ -d "$first" ] && [ "$(sed -n 2p told)" = "$first" ] || return 1
    touch "$first/demo.json"
    device=cpu demo seed=1 # that one is finished
    grep -q "going on with $first" said && [ "$(grep -c "^$first\$" told)" = 2 ] && [ "$(wc -l <told)" = 6 ] &&
        [ "$(sort -u told | wc -l)" = 5 ]
)
check "tools/demo goes on with the demo of the same arguments that was interrupted" a_demo_is_gone_on_with
refuses "a demo on a device of no kind" 2 "DEVICE: expected cpu, cuda or cuda:N" env DEVICE=gpu tools/demo

# doctor: a line for each part that may be missing, with its version or what it would be for.
"$KRL" doctor >"$tmp/doctor" 2>&1
parts=(cpu memory sandbox seccomp libseccomp namespaces landlock python triton tilelang cute parquet faiss transformers peft
    driver cuda nvcc g++ clang clang-format zstd oneDNN kittens kernelbench tensorboard models)
has_parts() {
    local p
    for p in "${parts[@]}"; do [ "$(awk -v p="$p" '$1 == p' "$tmp/doctor" | wc -l)" = 1 ] || { echo "$p" && return 1; }; done
}
check "doctor has one line for each part" has_parts
check "what is there has a version" sh -c "! command -v g++ >/dev/null || grep -qE '^g\\+\\+ +[0-9]+\\.[0-9.]+ \\(/' '$tmp/doctor'"
check "libseccomp's is the library's" grep -qE '^libseccomp +[1-9][0-9]*\.[0-9]+\.[0-9]+$' "$tmp/doctor"
# A machine with a Python that has Triton alone, and hardly a program.
mkdir -p "$tmp/few"
printf '%s\n' '#!/bin/sh' 'case $* in *triton=triton*) echo "9.8.7|" ;; *) echo "|" ;; esac' >"$tmp/few/python"
chmod +x "$tmp/few/python"
env KERNELRL_PYTHON="$tmp/few/python" KERNELRL_CUDA_PLUGIN="$tmp/few/none.so" THUNDERKITTENS_ROOT= KERNELBENCH_ROOT="$tmp/kb" \
    "$KRL" doctor >"$tmp/doctor" 2>&1
check "a package's version is that of KERNELRL_PYTHON" grep -qF "triton       9.8.7 ($tmp/few/python)" "$tmp/doctor"
check "what is missing says how to get it and what it is for" \
    grep -qE '^tilelang +not found \(pip install tilelang\); for answers in TileLang' "$tmp/doctor"
check "a plugin that cannot be loaded says why" grep -qE '^cuda +no: device cuda: .*none\.so' "$tmp/doctor"
check "KernelBench's folder is named" grep -qF "kernelbench  $tmp/kb" "$tmp/doctor"
check "all parts are there still" has_parts
check "docs/configuration.md is what the keys say" tools/configuration --check
echo "1..$tap_n"
