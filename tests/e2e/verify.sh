#!/usr/bin/env bash
# kernelrl verify and doctor from the outside. The full table of hostile answers is judged by verify_test.
. "$(dirname "$0")/tap.bash"
answers=tests/verify/answers
verify() { "$KRL" verify --problem tests/verify/relu.py "$@"; }

check "verify --help" "$KRL" verify --help
check "doctor --help" "$KRL" doctor --help
refuses "doctor with an argument" 2 'usage' "$KRL" doctor now
refuses "verify without a solution" 2 'problem and --solution' "$KRL" verify --problem x
refuses "an unknown option" 2 'unknown flag --fast' verify --solution $answers/good.c --fast
refuses "an unknown backend" 2 'backend: expected c' verify --solution $answers/good.c --backend fortran
refuses "a number out of range" 2 'trials: expected a whole number from 1 to 100' verify --solution $answers/good.c --trials 0
refuses "a solution that is not there" 1 'nowhere.c: No such file' verify --solution nowhere.c
refuses "a problem that is not there" 1 'nosuch' "$KRL" verify --problem nosuch --solution $answers/good.c

if ! "$KRL" doctor >"$tmp/doctor" 2>&1; then
    skip "verdicts" "$(grep -m 1 -E '^(sandbox|compiler|python) +no:' "$tmp/doctor" | cut -c 1-100)"
    refuses "without a sandbox it says what to do" 1 'bubblewrap|PyTorch|gcc' verify --solution $answers/good.c
    echo "1..$tap_n"
    exit 0
fi
ok "doctor finds what verify needs"
refuses "no bubblewrap: refuses and says how to get it" 1 'apt-get install bubblewrap.*--allow-weaker' \
    env KERNELRL_BWRAP=/nowhere/bwrap "$KRL" verify --problem tests/verify/relu.py --solution $answers/good.c
refuses "no torch: says what to install" 1 'KERNELRL_PYTHON' \
    env KERNELRL_PYTHON=/bin/false "$KRL" verify --problem tests/verify/relu.py --solution $answers/good.c
check "a good answer is correct and timed" sh -c \
    "'$KRL' verify --problem tests/verify/relu.py --solution $answers/good.c | tee '$tmp/good' && grep -q '^speed-up' '$tmp/good'"
check "allow-weaker runs it without bubblewrap" env KERNELRL_BWRAP=/nowhere/bwrap \
    "$KRL" verify --problem tests/verify/relu.py --solution $answers/good.c --allow-weaker --no-measure
if grep -qs landlock /sys/kernel/security/lsm; then
    check "and Landlock still hides the files" env KERNELRL_BWRAP=/nowhere/bwrap "$KRL" verify \
        --problem tests/verify/relu.py --solution $answers/reads_passwd.c --allow-weaker --no-measure
else skip "and Landlock still hides the files" "no Landlock in this kernel, or /sys/kernel/security is not mounted"; fi
refuses "an endless loop ends at the deadline" 1 '^outcome +timeout' verify --solution $answers/infinite_loop.c --timeout 1
refuses "a wrong answer" 1 '^outcome +wrong_output' verify --solution $answers/nearly.c
printf '#error \033[2J\nvoid kernel(const float *x, float *out) { (void)x; wrong y; }\n' >"$tmp/escapes.c"
check "no terminal obeys a message, and its lines are told from ours" sh -c \
    "'$KRL' verify --problem tests/verify/relu.py --solution '$tmp/escapes.c' >'$tmp/escapes'
     grep -q '#error ?\[2J' '$tmp/escapes' && ! grep -q \"\$(printf '\033')\" '$tmp/escapes' && grep -q '^           kernel.c:2:' '$tmp/escapes'"
refuses "a compile error names the line of the answer" 1 'kernel.c:2:' verify --solution $answers/compile_error.c
for backend in hip thunderkittens; do
    refuses "no $backend here" 1 '^outcome +backend_unavailable' env -u THUNDERKITTENS_ROOT "$KRL" verify --backend $backend \
        --device cpu --problem tests/cheats/problems/relu.py --solution tests/honest/relu_clamp.py
done
printf 'Thoughts first.\n<KERNEL>\n```c\n%s\n```\n</KERNEL>\n' "$(cat $answers/good.c)" >"$tmp/answer.txt"
check "an answer text with KERNEL tags" verify --solution "$tmp/answer.txt" --no-measure
echo "I do not know." >"$tmp/empty.txt"
refuses "an answer without a kernel" 1 '^outcome +no_kernel' verify --solution "$tmp/empty.txt"
verify --solution $answers/good.c --json --trials 7 >"$tmp/json" 2>/dev/null
check "--json is one object with the verdict" grep -qE \
    '^\{"outcome":"correct",.*"passed_stage":"timed",.*"tests_passed":7,"tests_total":7,.*"speedup":[0-9]' "$tmp/json"
verify --solution $answers/zeros.c --json >"$tmp/json2" 2>/dev/null
check "--json of a wrong answer has no speed-up" grep -qE '"class":"W",.*"speedup":null' "$tmp/json2"
# Our processes are known by an unusual thread count in their environment.
threads=$((29 + $$ % 16))
left() { grep -lsaz "^OMP_NUM_THREADS=$threads\$" /proc/[0-9]*/environ; }
"$KRL" verify --problem tests/verify/relu.py --solution $answers/infinite_loop.c --threads $threads --timeout 60 >/dev/null 2>&1 &
running() { cat /dev/null $(left | sed 's/environ$/comm/') 2>/dev/null | grep -q runner; }
for _ in $(seq 600); do
    if running; then break; fi
    sleep 0.1
done
check "the answer was running" running
{ kill -KILL $! && wait $!; } 2>/dev/null
for _ in $(seq 200); do # Python takes its time to go
    if [ -z "$(left)" ]; then break; fi
    sleep 0.1
done
check "a killed verifier leaves nothing running" test -z "$(left)"
echo "1..$tap_n"
