#!/usr/bin/env python3
"""tools/methods_table.py [--verdicts N] --out FILE RUNS METHOD...: the table of tools/experiment_methods, as Markdown.

RUNS/METHOD_SEED/test.json is an evaluation of `kernelrl eval`; methods over turns and start also have turns.json;
RUNS/stage1 has before_SEED.json and after_SEED.json. What is missing is left out and named. A problem's rate is the
mean over the answers of all seeds; rates are means over problems; intervals are 95 % percentile bootstraps over
problems, of changes paired ones. Standard library only.
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


REPAIR = [
    "`kevin_repair` spends half of its verdicts on the model's own answers, of which it makes supervised "
    "rows that repair",
    "them, and trains over turns with the other half.",
]


def train_time(found):
    """Seconds of training, the mean over seeds, and the cores."""
    times = []
    for path, _ in found:
        with open(os.path.join(os.path.dirname(path), "times.json"), encoding="utf-8") as f:
            times.append(json.load(f))
    cores = sorted({t["cores"] for t in times})
    return f"{sum(t['train_s'] for t in times) / len(times):.0f} ({', '.join(map(str, cores))})"


def methods_table(runs, methods, verdicts):
    start = [s for _, s in evaluations(runs, "start", "test.json")]
    lines = [
        "# Methods against each other",
        "",
        "The methods of `configs/` on the embedded model and the built-in problems, made by "
        "`tools/experiment_methods`: each",
        "from its file, at an equal number of verdicts, evaluated on the held-out problems with one answer "
        "to a prompt at",
        "temperature 1. `+key=value` is the method with keys changed. What to make of it stands in",
        "[lab-notes.md](lab-notes.md).",
        *(REPAIR if "kevin_repair" in methods else []),
        "",
        f"Score: what is trained for, {COMPILE_WEIGHT} for an answer that compiles, 1 for a correct one, and "
        f"{SPEED_WEIGHT} log2(1 + speed-up)",
        "of it. Intervals: 95 % bootstrap over problems, of differences paired. Train s: with the cores "
        "given, one seed's mean.",
        "",
        f"## After {verdicts} verdicts" if verdicts else "## Methods",
        "",
        "| method | seeds | compiles, % | correct, % | change | fast_1, % | score | grpo's above it | "
        "correct, each seed | level 1, 2, 3, correct, % | train s (cores) |",
        "|---|---:|---|---|---|---|---|---|---|---|---|",
    ]
    missing = []
    grpo = [s for _, s in evaluations(runs, "grpo", "test.json")]
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
        levels, above = [], "-"
        if grpo and m not in ("start", "grpo"):
            ours, theirs = (by_problem(x, mean_of(score)) for x in (grpo, rs))
            above = "{:+.2f} [{:+.2f}, {:+.2f}]".format(*interval([ours[k] - theirs[k] for k in ours if k in theirs]))
        for level in (1, 2, 3):
            of_level = [v for k, v in correct.items() if k[0] == level]
            levels.append(f"{100 * sum(of_level) / len(of_level):.1f}" if of_level else "-")
        lines.append(
            f"| {m} | {len(rs)} | {cells[0]} | {cells[1]} | {change} | {cells[2]} | {s:.2f} [{low:.2f}, "
            f"{high:.2f}] | {above} | "
            + f"{each} | {', '.join(levels)} | {train_time(found) if m != 'start' else '-'} |"
        )
    return lines, missing


def turns_table(runs, methods):
    """Solved by turn 4 against pass@k of independent answers."""
    rows = []
    names = [(m, m, "turns.json", "test.json") for m in ["start"] + methods]
    names += [(m + ", before", m, "before.turns.json", "before.json") for m in methods]
    for label, m, of_turns, of_answers in names:
        turns, single = evaluations(runs, m, of_turns), evaluations(runs, m, of_answers)
        if turns:  # of the same seeds
            seeds = {os.path.dirname(p) for p, _ in turns}
            single = [(p, s) for p, s in single if os.path.dirname(p) in seeds]
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
            rows.append(f"| {label} | {by4} | {tokens} | {at4} |")
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
    def every(pattern):
        return [samples_of(p) for p in sorted(glob.glob(os.path.join(glob.escape(runs), "stage1", pattern)))]

    before, after = every("before_*.json"), every("after_*.json")
    if not before or not after:
        return []
    lines = [
        "",
        f"## Stage 1 from a model that hardly compiles, seeds: {len(after)}",
        "",
        "| | before | after | change | after, each seed |",
    ]
    lines.append("|---|---|---|---|---|")
    for name, of in COLUMNS[:2]:
        a, b = by_problem(before, of), by_problem(after, of)
        change = percent([b[k] - a[k] for k in a if k in b], sign=True)
        each = ", ".join(f"{100 * sum(by_problem([r], of).values()) / len(r):.1f}" for r in after)
        lines.append(f"| {name}, % | {percent(list(a.values()))} | {percent(list(b.values()))} | {change} | {each} |")
    return lines


def ahead_table(runs, methods):
    """Time of a step and reward of the last four, of methods that name max_staleness: on as many cores, they differ in
    it."""
    rows = []
    for m in methods:
        steps = []
        for path in sorted(glob.glob(os.path.join(glob.escape(runs), glob.escape(m) + "_*", "run", "metrics.jsonl"))):
            if os.path.isfile(os.path.join(os.path.dirname(os.path.dirname(path)), "times.json")):  # it has ended
                with open(path, encoding="utf-8") as f:
                    steps.append([r for r in map(json.loads, f) if "reward/mean" in r])
        if "max_staleness" in m and steps:
            means = [
                [sum(r[key] for r in s) / len(s) for s in part]
                for key, part in (
                    ("time/total", [s[1:] or s for s in steps]),  # the first step has nothing to overlap with
                    ("reward/mean", [s[-4:] for s in steps]),
                    ("train/kl_k3", steps),
                )
            ]
            means[2] = [1e4 * x for x in means[2]]
            rows.append("| " + m + " | " + " | ".join(", ".join(f"{x:.2f}" for x in each) for each in means) + " |")
    if not rows:
        return []
    return [
        "",
        "## Sampling a batch ahead",
        "",
        "| method, each seed | seconds a step | reward of the last four steps | KL of sampler and trainer, 1e-4 nats |",
        "|---|---|---|---|",
        *rows,
    ]


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--verdicts", type=int)
    p.add_argument("--out", required=True)
    p.add_argument("runs")
    p.add_argument("methods", nargs="+")
    a = p.parse_args()
    lines, missing = methods_table(a.runs, a.methods, a.verdicts)
    lines += turns_table(a.runs, a.methods) + stage1_table(a.runs) + ahead_table(a.runs, a.methods)
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
