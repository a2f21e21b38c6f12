#!/usr/bin/env bash
# Verdicts of other processes from the outside: the real verifier behind verify_hosts, and what a worker refuses. Hosts
# that die or lie are tested with a stand-in (src/verify/pool/pool_test.c), queues in tests/faults/farm*.sh.
. "$(dirname "$0")/tap.bash"
answers=tests/verify/answers
verify() { "$KRL" verify --problem tests/verify/relu.py --no-measure --trials 1 "$@"; }
refuses "a list of hosts that cannot be read" 2 'expected local:N.*got "farm:3"' \
    verify --solution $answers/good.c --verify-hosts farm:3
refuses "a GPU that is not there" 3 'GPU' verify --solution $answers/good.c --verify-hosts local:cuda:900
refuses "a queue without credentials" 2 'KERNELRL_FARM has to name a folder' env -u KERNELRL_FARM \
    "$KRL" verify --problem tests/verify/relu.py --solution $answers/good.c --verify-hosts nats:tls://127.0.0.1:1
refuses "a host behind ssh that does not answer: said by name" 1 'ssh:nowhere: .*no such host' \
    env KERNELRL_SSH="$tmp/ssh" "$KRL" verify --problem tests/verify/relu.py --solution $answers/good.c \
    --verify-hosts ssh:nowhere:2 < <(printf '#!/bin/sh\necho "no such host" >&2\nexit 255\n' >"$tmp/ssh" && chmod +x "$tmp/ssh")

# What is no message is refused, line by line; who speaks so is answered, and the worker goes on.
{
    printf 'garbage\n{"type":"job"}\n\n{"type":"verdict","j":7}\n[1,2]\n'
    head -c 100000000 /dev/zero | tr '\0' x
    printf '\n{"type":"drain"}\n'
} | "$KRL" verify-worker >"$tmp/said" 2>"$tmp/out"
check "a worker that is told nonsense goes on, and drains when it is told to" test "${PIPESTATUS[1]}" = 0
check "it says who it is first" sh -c "head -n 1 '$tmp/said' | grep -q '\"type\":\"hello\".*\"classes\":\[\"cpu-'"
check "each line that is none is refused" test "$(grep -c '"type":"refused".*"what":"line"' "$tmp/said")" -ge 4
check "and one of 100 MB by its size" grep -qE '"type":"refused".*"what":"size".*100000000' "$tmp/said"

# A job is refused with both values, whatever of it is not this worker's, and comes back by its name.
job() { # PROGRAM SETTINGS_HASH CLASS
    tail -c +2 tests/fuzz/corpus/pool_lines/job | sed "s/\"program\":\"[^\"]*\"/\"program\":\"$1\"/
        s/\"settings_hash\":\"[^\"]*\"/\"settings_hash\":\"$2\"/; s/\"class\":\"[^\"]*\"/\"class\":\"$3\"/" | tr -d '\n'
    echo
}
asked() { # FIELD: of the refusal of a job; what the worker said is in $tmp/said
    grep '"type":"refused","j":"0123456789abcdef' "$tmp/said" | sed -n "s/.*\"$1\":\"\([^\"]*\)\".*/\1/p"
}
ask() {
    { job "$@" && echo '{"type":"drain"}'; } | "$KRL" verify-worker >"$tmp/said" 2>"$tmp/out"
}
version=$(sed -n 's/.*"program":"\([^"]*\)".*/\1/p' "$tmp/said" | head -n 1)
class=$(sed -n 's/.*"classes":\["\([^"]*\)".*/\1/p' "$tmp/said" | head -n 1)
ask 0.1.2 0 "$class"
check "a job of another version" test "$(asked what) $(asked here) $(asked there)" = "program $version 0.1.2"
ask "$version" 0123456789abcdef "$class"
hash=$(asked here)
check "of settings that mean something else here" test "$(asked what) $(asked there)" = "settings 0123456789abcdef"
ask "$version" "$hash" cpu-abacus-x1
check "of another kind of machine" test "$(asked what) $(asked here) $(asked there)" = "class $class cpu-abacus-x1"
ask "$version" "$hash" "$class"
check "of a run whose secret nobody has told" test "$(asked what)" = secret

if ! "$KRL" doctor >"$tmp/doctor" 2>&1; then
    skip "verdicts" "$(grep -m 1 -E '^(sandbox|compiler|python) +no:' "$tmp/doctor" | cut -c 1-100)"
else
    check "a right answer, judged by another process" verify --solution $answers/good.c --verify-hosts local:1
    refuses "a wrong one" 1 '^outcome +wrong_output' verify --solution $answers/nearly.c --verify-hosts local:1
    refuses "another kind of machine than is asked for" 1 'verdicts are wanted of cpu-abacus-x1' \
        verify --solution $answers/good.c --verify-hosts local:1 --verify-class cpu-abacus-x1
fi
echo "1..$tap_n"
