#!/usr/bin/env bash
# kernelrl verify --jsonl: requests and verdicts as lines of a pipe that stays open.
. "$(dirname "$0")/tap.bash"
check "all that a line can ask for" python3 tests/e2e/verify_lines.py "$KRL" cases
check "a pipe that stays open: each answer comes before the next question" python3 tests/e2e/verify_lines.py "$KRL" talk
check "the reward is that of the configuration, and of \`score\`" python3 tests/e2e/verify_lines.py "$KRL" rewards "$tmp"
check "the same through hosts" python3 tests/e2e/verify_lines.py "$KRL" cases --verify-hosts local:2
check "a problem that ends its process takes no other answer with it" python3 tests/e2e/verify_lines.py "$KRL" fatal
check "nothing at all" sh -c "test -z \"\$('$KRL' verify --jsonl </dev/null)\""
refuses "nobody who reads" 1 'standard output: No space' sh -c "python3 tests/e2e/verify_lines.py '$KRL' requests | '$KRL' verify --jsonl >/dev/full"
refuses "a flag that means nothing here" 2 'problem means nothing with --jsonl' "$KRL" verify --jsonl --problem 1/1
refuses "a request that was refused shows in the exit status" 1 'there is no such field' sh -c "echo '{\"x\": 1}' | '$KRL' verify --jsonl"
echo "1..$tap_n"
