#!/usr/bin/env bash
# The tools behind docs/results.md on small files whose pooled figures are worked out by hand.
. "$(dirname "$0")/tap.bash"

item() { # PROBLEM N CORRECT SPEEDUP
    printf '{"problem": "%s", "n": %s, "parse": 1, "compile": 1, "correct": %s, "fast_1": 0, "speedup": %s}' "$@"
}
evaluation() { # ITEM ITEM
    printf '{"problems": 2, "samples": 2, "temperature": 1, "missing": 0, "mean_tokens": 9, "items": [%s, %s]}' "$@"
}
demo() { # SEED BEFORE AFTER: the greedy half is the same
    mkdir -p "$tmp/run$1"
    printf '{"seed": %d, "seconds": 90.4, "peak_rss_mib": 500, "peak_child_rss_mib": 700, "before": %s, "after": %s,
        "before_greedy": %s, "after_greedy": %s}\n' "$1" "$2" "$3" "$2" "$3" >"$tmp/run$1/demo.json"
}
# Before: A .5 (seed 1 has no verdict), B 0: 25 %. After: A 1, B .5: 75 %. Speed-ups before: 2; after: four times 4, then
# 1 and 4: 4^(5/6) = 3.17. Solved both times: A by seed 0, from 2 to 4.
demo 0 "$(evaluation "$(item A 2 0.5 2)" "$(item B 2 0 0)")" "$(evaluation "$(item A 2 1 4)" "$(item B 2 0.5 1)")"
demo 1 "$(evaluation "$(item B 2 0 0)" "$(item A 0 0 0)")" "$(evaluation "$(item A 2 1 4)" "$(item B 2 0.5 4)")"

pool=(python3 tools/pool_demo.py)
check "runs are pooled" "${pool[@]}" --out "$tmp/results.md" "$tmp/run0" "$tmp/run1"
cp "$tmp/out" "$tmp/printed.md"
check "what is printed is what is written" cmp "$tmp/printed.md" "$tmp/results.md"
has() { check "$1" grep -F -- "$2" "$tmp/results.md"; }
has "rate before: a problem without a verdict does not count" "| correct, % | 25.0 ["
has "rate after, and the change" "] | 75.0 ["
has "change" "| +50.0 ["
has "speed-up over all correct answers" "| speed-up of correct kernels | 2.00x [2.00, 2.00] | 3.17x ["
has "paired speed" "| temperature 1 | 2.00x [2.00, 2.00] | 1 |"
has "nothing faster" "fast_1), % | 0.0 [0.0, 0.0] | 0.0 [0.0, 0.0] | +0.0 [+0.0, +0.0] |"
has "a row for each seed" "| 1 | 0.0 → 75.0 | 0.0 → 0.0 | – |"
has "wall time and peak" "| 90 | 700 |"
printf '\n# Results of something else\n\nKept.\n' >>"$tmp/results.md"
check "pooled again" "${pool[@]}" --out "$tmp/results.md" "$tmp/run0" "$tmp/run1"
printf '\n# Results of something else\n\nKept.\n' >>"$tmp/printed.md"
check "what stands below the demo's part is kept" cmp "$tmp/printed.md" "$tmp/results.md"

refuses "the same seed twice" 1 'same seed' "${pool[@]}" "$tmp/run0" "$tmp/run0"
demo 2 "$(evaluation "$(item A 2 0 0)" "$(item C 2 0 0)")" "$(evaluation "$(item A 2 0 0)" "$(item C 2 0 0)")"
refuses "other problems" 1 'do not hold the same problems' "${pool[@]}" "$tmp/run0" "$tmp/run2"
demo 3 "$(evaluation "$(item A 2 1.5 0)" "$(item B 2 0 0)")" "$(evaluation "$(item A 2 0 0)" "$(item B 2 0 0)")"
refuses "a rate above 1" 1 'run3.*A: .*out of range' "${pool[@]}" "$tmp/run3"
head -c 100 "$tmp/run0/demo.json" >"$tmp/cut.json"
refuses "half a file" 1 'cut.json: not a demo.json' "${pool[@]}" "$tmp/cut.json"
refuses "no run" 2 '^usage' "${pool[@]}"

for seed in 0 1; do
    for step in 0 1 2; do
        echo "{\"step\": $step, \"reward/mean\": 0.$step$seed, \"kernel/correct_rate\": null, \"time/total_s\": 1}"
    done >"$tmp/run$seed/metrics.jsonl"
done
plot=(python3 tools/plot_demo.py)
refuses "a metric without a value" 1 'metrics.jsonl: no value of kernel/correct_rate' \
    "${plot[@]}" "$tmp/plot.svg" "$tmp/run0"
sed -i 's/null/0.5/' "$tmp"/run?/metrics.jsonl
printf '{"step": 3, "rew' >>"$tmp/run1/metrics.jsonl" # a run that is still writing
check "two runs are drawn" "${plot[@]}" "$tmp/plot.svg" "$tmp/run0" "$tmp/run1"
check "the picture is XML with a line a run and a mean in each panel" python3 - "$tmp/plot.svg" <<'PY'
import sys, xml.etree.ElementTree as ET
lines = [e for e in ET.parse(sys.argv[1]).iter() if e.tag.endswith("polyline")]
assert [e.get("class") for e in lines] == ["run", "run", "mean"] * 2, lines
assert all(len(e.get("points").split()) == 3 for e in lines)
# The mean lies between the two runs.
a, b, m = ([float(p.split(",")[1]) for p in e.get("points").split()] for e in lines[:3])
assert all(abs((x + y) / 2 - z) <= 0.11 for x, y, z in zip(a, b, m)) and a != b
PY
refuses "a broken line is named" 1 'broken/metrics.jsonl:1' sh -c \
    'mkdir -p "$1/broken" && echo "{\"step\": 1," >"$1/broken/metrics.jsonl" &&
     python3 tools/plot_demo.py "$1/p.svg" "$1/broken"' sh "$tmp"
refuses "no such run" 1 'plot_demo: .*absent' "${plot[@]}" "$tmp/p.svg" "$tmp/absent"
echo "1..$tap_n"
