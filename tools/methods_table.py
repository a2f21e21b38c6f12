#!/usr/bin/env python3
"""tools/methods_table.py [--verdicts N] --out FILE RUNS METHOD...: the table of tools/experiment_methods, as Markdown.

RUNS/METHOD_SEED/test.json is an evaluation of `kernelrl eval`; kevin and start also have turns.json; RUNS/stage1 has
before.json and after.json. What is missing is left out and named. A problem's rate is the mean over the answers of all
seeds; rates are means over problems; intervals are 95 % percentile bootstraps over problems, of changes paired ones.
Standard library only.
"""
import argparse
import glob
import json
import math
import os
import random
import re

DRAWS = 2000
SPEED_WEIGHT, SPEED_CAP, COMPILE_WEIGHT = 0.5, 3.0, 0.1  # what the methods are trained for


def samples_of(path):
    """{(level, problem): [sample, ...]}"""
    with open(path, encoding="utf-8") as f:
        return {(r["level"], r["problem_id"]): r["samples"] for r in json.load(f)["results"]}


def score(s):
    if not s["correct"]:
        return COMPILE_WEIGHT * s["compiled"]
    return COMPILE_WEIGHT + 1 + SPEED_WEIGHT * min(SPEED_CAP, math.log2(1 + (s["speedup"] or 0)))


def pass_at(k):
    def of(samples):
        n, c = len(samples), sum(bool(s["correct"]) for s in samples)
        return 1 - math.comb(n - c, k) / math.comb(n, k) if n >= k else None

    return of


def solved(samples):
    """Share of the trajectories with a correct turn."""
    tries = {}
    for s in samples:
        tries[s["sample_id"]] = tries.get(s["sample_id"], False) or bool(s["correct"])
    return sum(tries.values()) / len(tries) if tries else None


def mean_of(value):
    return lambda samples: sum(map(value, samples)) / len(samples) if samples else None


CORRECT = mean_of(lambda s: bool(s["correct"]))
COLUMNS = [
    ("compiles", mean_of(lambda s: bool(s["compiled"]))),
    ("correct", CORRECT),
    ("fast_1", mean_of(lambda s: bool(s["correct"]) and (s["speedup"] or 0) > 1)),
]


def by_problem(runs, of):
    """{problem: mean over seeds} of a statistic of a problem's samples."""
    keys = sorted(set.intersection(*(set(r) for r in runs)))
    values = {k: [v for v in (of(r[k]) for r in runs) if v is not None] for k in keys}
    return {k: sum(v) / len(v) for k, v in values.items() if v}


def interval(values):
    rng = random.Random(1)
    n = len(values)
    means = sorted(sum(rng.choices(values, k=n)) / n for _ in range(DRAWS))
    return sum(values) / n, means[int(0.025 * DRAWS)], means[int(0.975 * DRAWS) - 1]


def percent(values, sign=False):
    if not values:
        return "-"
    m, low, high = interval([100 * v for v in values])
    return f"{m:+.1f} [{low:+.1f}, {high:+.1f}]" if sign else f"{m:.1f} [{low:.1f}, {high:.1f}]"


def evaluations(runs, method, name):
    paths = sorted(glob.glob(os.path.join(glob.escape(runs), f"{method}_*", name)))
    return [(p, samples_of(p)) for p in paths if re.fullmatch(re.escape(method) + r"_\d+", p.split(os.sep)[-2])]


def methods_table(runs, methods, verdicts):
    start = [s for _, s in evaluations(runs, "start", "test.json")]
    lines = [
        f"## Methods, after {verdicts} verdicts" if verdicts else "## Methods",
        "",
        "| method | seeds | compiles, % | correct, % | change | fast_1, % | score | correct, each seed | level 1 | level 2 | level 3 |",
        "|---|---:|---|---|---|---|---|---|---:|---:|---:|",
    ]
    missing = []
    for m in ["start"] + methods:
        found = evaluations(runs, m, "test.json")
        if not found:
            missing.append(m)
            continue
        rs = [s for _, s in found]
        cells = [percent(list(by_problem(rs, of).values())) for _, of in COLUMNS]
        correct = by_problem(rs, CORRECT)
        change = "-"
        if m != "start" and start:
            before = by_problem(start, CORRECT)
            change = percent([correct[k] - before[k] for k in correct if k in before], sign=True)
        s, low, high = interval(list(by_problem(rs, mean_of(score)).values()))
        each = ", ".join(f"{100 * sum(by_problem([r], CORRECT).values()) / len(r):.1f}" for r in rs)
        levels = []
        for level in (1, 2, 3):
            of_level = [v for k, v in correct.items() if k[0] == level]
            levels.append(f"{100 * sum(of_level) / len(of_level):.1f}" if of_level else "-")
        lines.append(
            f"| {m} | {len(rs)} | {cells[0]} | {cells[1]} | {change} | {cells[2]} | {s:.2f} [{low:.2f}, {high:.2f}] | {each} | "
            + " | ".join(levels)
            + " |"
        )
    return lines, missing


def turns_table(runs, methods):
    """Solved by turn 4 against pass@k of independent answers."""
    rows = []
    for m in ["start"] + methods:
        turns, single = evaluations(runs, m, "turns.json"), evaluations(runs, m, "test.json")
        if single:
            by4 = percent(list(by_problem([s for _, s in turns], solved).values())) if turns else "-"
            tokens = "-"
            if turns:
                a, b = (
                    sum(json.load(open(p, encoding="utf-8"))["metrics"]["mean_tokens"] for p, _ in x) / len(x)
                    for x in (turns, single)
                )
                tokens = f"{a / b:.1f}"
            at4 = percent(list(by_problem([s for _, s in single], pass_at(4)).values()))
            rows.append(f"| {m} | {by4} | {tokens} | {at4} |")
    if not rows:
        return []
    return [
        "",
        "## Four turns against four answers",
        "",
        "| method | solved by turn 4, % | its tokens in answers | pass@4 of independent answers, % |",
        "|---|---|---:|---|",
        *rows,
    ]


def stage1_table(runs):
    paths = [os.path.join(runs, "stage1", n) for n in ("before.json", "after.json")]
    if not all(map(os.path.isfile, paths)):
        return []
    before, after = map(samples_of, paths)
    lines = ["", "## Stage 1 from a model that hardly compiles", "", "| | before | after | change |", "|---|---|---|---|"]
    for name, of in COLUMNS[:2]:
        a, b = by_problem([before], of), by_problem([after], of)
        change = percent([b[k] - a[k] for k in a if k in b], sign=True)
        lines.append(f"| {name}, % | {percent(list(a.values()))} | {percent(list(b.values()))} | {change} |")
    return lines


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--verdicts", type=int)
    p.add_argument("--out", required=True)
    p.add_argument("runs")
    p.add_argument("methods", nargs="+")
    a = p.parse_args()
    lines, missing = methods_table(a.runs, a.methods, a.verdicts)
    lines += turns_table(a.runs, a.methods) + stage1_table(a.runs)
    kills = os.path.join(a.runs, "kills.txt")
    if os.path.isfile(kills):
        with open(kills, encoding="utf-8") as f:
            lines += ["", "## Killed ten times", "", "`" + f.read().strip() + "`"]
    if missing:
        lines += ["", "No result: " + ", ".join(missing) + "."]
    with open(a.out, "w", encoding="utf-8") as f:
        f.write("\n".join(lines) + "\n")
    print("written:", a.out)


if __name__ == "__main__":
    main()
