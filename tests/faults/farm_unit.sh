#!/usr/bin/env bash
# All of src/verify/pool/farm_test.c, which waits for leases to end; `make test` runs its quick part.
. "$(dirname "$0")/../e2e/tap.bash"
. tests/faults/farm.bash
if ! why=$(farm_here); then
    skip "a farm" "$why"
elif ! make --no-print-directory -s build/test/verify/pool/farm_test >"$tmp/out" 2>&1; then
    not_ok "farm_test is built"
else
    check "hosts, server and trainer die; keys are stolen, verdicts forged" build/test/verify/pool/farm_test all
    while read -r line; do
        case $line in
        *'[       OK ]'*) ok "${line##*] }" ;;
        *'[  FAILED  ] '[a-z_]*) not_ok "${line##*] }" ;;
        esac
    done < <(awk '/^\[==========\].*test\(s\) run/ { exit } { print }' "$tmp/out")
fi
echo "1..$tap_n"
