#!/usr/bin/env bash
# The library without the RL loop: a program of sixty lines opens a policy, samples, trains two steps and saves.
. "$(dirname "$0")/tap.bash"
program=build/test/library/two_steps
check "the program is built" make --no-print-directory $program
check "it has sixty lines and includes nothing of rl/" bash -c \
    '! grep -q "include \"rl/" tests/library/two_steps.c && [ "$(wc -l <tests/library/two_steps.c)" -le 60 ]'
check "it samples and trains two steps" bash -c '"$1" models/tiny "$2/adapter" >"$2/said" 2>&1' - $program "$tmp"
for step in 0 1; do
    check "step $step is on-policy to the bit" grep -qE "^step $step: [0-9]+ rows, gradient [0-9.e-]+, ratio 1\$" "$tmp/said"
done
check "kernelrl samples with the adapter" "$KRL" sample --model models/tiny --adapter "$tmp/adapter" --prompt hello --max-tokens 4
refuses "a model that is not there" 1 'MODEL: no directory' $program no/such/model
echo "1..$tap_n"
