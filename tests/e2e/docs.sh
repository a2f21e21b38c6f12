#!/usr/bin/env bash
# The documents' commands do what they say: every ```sh and ```python block is run, unless the line in front of it is a
# comment "<!-- not run: WHY -->", or "<!-- needs: MODULE -->" and Python (KERNELRL_PYTHON) lacks the module; every ```c block
# that includes headers of ours compiles; links lead somewhere. So does what is made from the tables: help, manual page,
# completion.
. "$(dirname "$0")/tap.bash"
docs=(docs/quickstart.md docs/training.md docs/evaluation.md docs/coming-from-kernel-rl.md docs/writing-a-reward.md
    docs/adding-an-op.md docs/troubleshooting.md docs/verification.md docs/serving.md docs/verdict-service.md
    docs/frameworks.md)
python=$(command -v "${KERNELRL_PYTHON:-python3}")
# docs/serving.md starts a server in one block and ends it in the last one; the port is any that is free.
trap 'kill "$(cat "$tmp/kernelrl-serve.pid" 2>/dev/null)" 2>/dev/null; rm -rf "$tmp"' EXIT
python3 - "$tmp" "${docs[@]}" <<'PY'
import os, re, socket, sys
tmp = sys.argv[1]
with socket.socket() as free:
    free.bind(("127.0.0.1", 0))
    port = str(free.getsockname()[1])
n = 0
for path in sys.argv[2:]:
    lines = open(path).read().split("\n")
    i = 0
    while i < len(lines):
        m = re.match(r"( *)```(sh|c|python)$", lines[i])
        if not m:
            i += 1
            continue
        end = next(k for k in range(i + 1, len(lines)) if lines[k] == m.group(1) + "```")
        text = "\n".join(l[len(m.group(1)):] for l in lines[i + 1:end]) + "\n"
        text = text.replace("/tmp/kernelrl-", tmp + "/kernelrl-")
        if path in ("docs/serving.md", "docs/verdict-service.md", "docs/frameworks.md"):
            text = re.sub(r"(?<=:)8000|(?<=--port )8000", port, text)
        if "<!-- not run: " not in lines[i - 1]:
            n += 1
            open("%s/%03d.%s" % (tmp, n, m.group(2)), "w").write(text)
            open("%s/%03d.name" % (tmp, n), "w").write("%s:%d" % (path, i + 1))
            needs = re.match("<!-- needs: (.*) -->", lines[i - 1])
            if needs:
                open("%s/%03d.needs" % (tmp, n), "w").write(needs.group(1))
        i = end + 1
    for link in re.findall(r"\]\(([^)#:]+)\)", "\n".join(lines)):
        if not os.path.exists(os.path.join(os.path.dirname(path), link)):
            print("%s: no %s" % (path, link))
PY
# Every row of docs/faults.md names a test that is there.
grep -E '^\| +[0-9]+ ' docs/faults.md | sed -E 's/^\| +([0-9]+) .*\| `([^`]*)`: (.*) \|$/\1\t\2\t\3/' >"$tmp/faults"
while IFS=$'\t' read -r n file name; do
    if ! grep -qF -- "$name" "$file"; then echo "fault $n: no \"$name\" in $file"; fi
done <"$tmp/faults" >"$tmp/missing" 2>&1
check "fifty faults, each with a test" sh -c "test \"\$(cut -f1 '$tmp/faults' | paste -sd' ')\" = '$(seq 50 | paste -sd' ')' &&
    cat '$tmp/missing' && test ! -s '$tmp/missing'"
# Every row of the table of cheats is there, with files that are there or a reason; every cheat is in the table.
check "the table of cheats" python3 - <<'PY'
import glob, os, re
text = open("docs/verification.md").read()
rows = re.findall(r"^\| ([A-F]\d+) \|[^|]*\|([^|]*)\|([^|]*)\|$", text, re.M)
wanted = [c + str(i + 1) for c, n in zip("ABCDEF", (26, 9, 8, 15, 17, 17)) for i in range(n)]
assert [r[0] for r in rows] == wanted, sorted(set(wanted) ^ {r[0] for r in rows})
for row, files, reason in rows:
    assert "`" in files or reason.strip().startswith(("not tested", "not caught")), row
named = {os.path.normpath("tests/cheats/" + f) for f in re.findall(r"`([\w./]+\.(?:py|cu|c))`", text)}
missing = [f for f in named if not os.path.isfile(f)]
assert not missing, missing
there = [f for d in ("", "gpu/", "native/", "c/") for f in glob.glob("tests/cheats/" + d + "*.*") if not f.endswith("tsv")]
assert not set(there) - named, sorted(set(there) - named)
PY
# docs/serving.md names each parameter that the server refuses, and none that it takes.
check "the parameters that are refused" python3 - <<'PY'
import re
source = open("src/serve/ask.c").read()
text = open("docs/serving.md").read()
table = text[text.index("**Refused on purpose**") : text.index("Not there at all (404)")]
rows = dict(re.findall(r"^\| ([^|]*) \| ([^|]*) \|$", table, re.M))
named = set(re.findall(r"`(\w+)`", " ".join(rows.values()))) - {"text", "n"}
refused = set(re.findall(r'^    NEUTRAL\("(\w+)"', source, re.M))
assert len(refused) > 25 and not refused - named, sorted(refused - named)
others = {"tools", "tool_choice", "best_of", "dimensions"}
assert not named - refused - others, sorted(named - refused - others)
PY
cp /dev/null "$tmp/out"
check "there are commands to run" test -s "$tmp/001.name"
if [ "$KRL" != build/kernelrl ]; then echo "# the documents say build/kernelrl, which is another program than $KRL"; fi
export no_proxy=127.0.0.1
for block in "$tmp"/[0-9]*.sh "$tmp"/[0-9]*.python; do printf '%s\n' "$block"; done | sort >"$tmp/blocks"
while read -r block <&3; do
    name=$(cat "${block%.*}.name")
    if [ -f "${block%.*}.needs" ] && ! "$python" -c "import $(cat "${block%.*}.needs")" 2>/dev/null; then
        skip "$name" "Python has no $(cat "${block%.*}.needs")"
    elif [ ! -f models/tiny/model.safetensors ] && { [[ $name == docs/serving.md* ]] || grep -q 'models/tiny' "$block"; }; then
        skip "$name" "models/tiny has no model.safetensors; make embedded-model builds it"
    elif [ "${block##*.}" = python ]; then
        check "$name" "$python" "$block"
    else
        check "$name" env PATH="${python%/*}:$PATH" bash -eu "$block"
    fi
done 3<"$tmp/blocks"
for block in "$tmp"/[0-9]*.c; do
    check "$(cat "${block%.c}.name") compiles" gcc -std=gnu11 -D_GNU_SOURCE -Isrc -Wall -Wextra -Werror -Wstrict-prototypes \
        -fsyntax-only "$block"
done

# What is made from the tables.
says() { # NAME REGEX COMMAND...
    local name=$1 regex=$2
    shift 2
    "$@" >"$tmp/said" 2>&1
    cp "$tmp/said" "$tmp/out"
    check "$name" grep -qE -- "$regex" "$tmp/said"
}
"$KRL" help | sed -n 's/^  \([a-z-]*\) .*/\1/p' >"$tmp/commands"
check "help lists the commands" test "$(wc -l <"$tmp/commands")" -ge 20
while read -r c; do says "help $c" '^usage: kernelrl' "$KRL" help "$c"; done <"$tmp/commands"
check "no help shows a printf escape" sh -c "while read -r c; do '$KRL' help \$c; done <'$tmp/commands' | awk '/%%/ { exit 1 }'"
says "help KEY" 'learning_rate' "$KRL" help learning_rate
says "help of a key by its short name" 'dataset_builder.raicl_k' "$KRL" help raicl_k
says "help of a key that only eval has" 'num_samples' "$KRL" help num_samples
refuses "help of what is neither" 2 'neither a command nor a key: "learnin_rate"' "$KRL" help learnin_rate
says "version: commit, processor, CUDA" '^kernelrl [0-9.]+ \(commit [0-9a-z-]+\)' "$KRL" --version
check "and what the machine has" sh -c "grep -q '^cpu:' '$tmp/said' && grep -q '^cuda: plugin' '$tmp/said'"
"$KRL" man >"$tmp/kernelrl.1"
check "the manual page has every command" sh -c "for c in \$(grep -vxE 'man|help' '$tmp/commands'); do
    grep -qx \".SS \$c\" '$tmp/kernelrl.1' || exit 1; done"
check "and no line that roff would take for a request of its own" sh -c \
    "! grep -E '^[.]' '$tmp/kernelrl.1' | grep -qvE '^[.](TH|SH|SS|PP|TP|nf|fi|B|I)( |\$)'"
"$KRL" completion bash >"$tmp/completion"
complete_() { # WORD...: what completes the last word
    bash -c 'source "$1"; shift; COMP_WORDS=("$@") COMP_CWORD=$(($# - 1)); compopt() { :; }; _kernelrl; echo "${COMPREPLY[*]}"' \
        bash "$tmp/completion" "$@"
}
refuses "a disk that is full" 1 'standard output: not all could be written' sh -c "'$KRL' man >/dev/full"
check "a reader who goes early is no error" bash -c "set -o pipefail; '$KRL' man | head -n 1"
check "completion of a command" test "$(complete_ kernelrl pro)" = problems
check "of a key" test "$(complete_ kernelrl train learning_r)" = learning_rate=
check "of a key of each command that takes some" sh -c "! grep -A1 -E '^        (demo|optimize|corpus|plan|score|sft|eval|generate)[)]' \
    '$tmp/completion' | grep words= | grep -vq '[a-z]= '"
check "of optimize's own" test "$(complete_ kernelrl optimize bud)" = budget=
check "of an option" test "$(complete_ kernelrl build-rag-index --tri)" = --triton-only
check "of a subcommand" test "$(complete_ kernelrl problems gen)" = generate
check "of a choice" test "$(complete_ kernelrl verify --precision bf)" = bf16
same_help() { "$KRL" help "$@" >"$tmp/help" && "$KRL" "$@" --help >"$tmp/asked" && cmp "$tmp/help" "$tmp/asked"; }
while read -r c; do check "help $c is $c --help" same_help "$c"; done < <(grep -vx help "$tmp/commands")
check "help bench verify is bench verify --help" same_help bench verify
check "and topics" grep -qx '  Optimizer' <("$KRL" help train)
check "help of a command with more words runs nothing" grep -q '^usage: kernelrl runs' <("$KRL" help runs resume no-such-run)
check "the help of keys is in sections" grep -qx 'Keys of dataset_builder:' <("$KRL" help train)
refuses "completion of another shell" 2 'usage' "$KRL" completion fish
echo "1..$tap_n"
