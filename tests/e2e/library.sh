#!/usr/bin/env bash
# The library without the RL loop: a program of sixty lines opens a policy, samples, trains two steps and saves; another
# one has two adapters.
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
# Many models over one base: adapters with parts of their own, trained in turns, at rest between their turns.
program=build/test/library/two_adapters
check "a program of two adapters is built" make --no-print-directory $program
mkdir "$tmp/two"
check "it trains both in turns" bash -c '"$1" models/tiny "$2/two" >"$2/said" 2>&1' - $program "$tmp"
for adapter in 1 2; do
    check "adapter $adapter learns" awk -v of="$adapter:" \
        '$2 == of && $3 == "loss" { if (n++ && $4 >= last) exit 1; last = $4 } END { exit n < 3 }' "$tmp/said"
    check "kernelrl samples with adapter $adapter" "$KRL" sample --model models/tiny --adapter "$tmp/two/$((adapter - 1))" \
        --prompt hello --max-tokens 4
done
check "nothing is left at rest" test ! -e "$tmp/two/trainer.safetensors"
echo "1..$tap_n"
