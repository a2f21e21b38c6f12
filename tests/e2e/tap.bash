# TAP helpers for the end-to-end tests: `check NAME COMMAND...` is ok when the command succeeds.
cd "$(dirname "${BASH_SOURCE[0]}")/../.." || exit 1
KRL=${KERNELRL:-build/kernelrl}
tap_n=0
tmp=$(mktemp -d)
trap 'rm -rf "$tmp"' EXIT
ok() { tap_n=$((tap_n + 1)); echo "ok $tap_n - $1"; }
not_ok() {
    tap_n=$((tap_n + 1))
    echo "not ok $tap_n - $1"
    [ -f "$tmp/out" ] && tail -n 15 "$tmp/out" | sed 's/^/# /'
}
skip() { tap_n=$((tap_n + 1)); echo "ok $tap_n - $1 # SKIP $2"; }
check() {
    local name=$1
    shift
    if "$@" >"$tmp/out" 2>&1; then ok "$name"; else not_ok "$name"; fi
}
# `refuses NAME EXIT_CODE REGEX COMMAND...`: the command fails with that code and says what the regex matches.
refuses() {
    local name=$1 code=$2 regex=$3 got=0
    shift 3
    "$@" >"$tmp/out" 2>&1 || got=$?
    if [ "$got" = "$code" ] && grep -qE "$regex" "$tmp/out"; then ok "$name"; else
        echo "exit code $got, expected $code and /$regex/" >>"$tmp/out"
        not_ok "$name"
    fi
}
