#!/usr/bin/env python3
"""tools/pool_demo.py [--out FILE] RUN...: one Markdown report of several `kernelrl demo` runs with different seeds.

RUN is a run directory with demo.json, or such a file. All runs must hold the same held-out problems. A problem's rate
is the mean over the answers of all runs; rates are means over problems; intervals are 95 % percentile bootstraps over
problems (the same draws before and after, so that a change has an interval of its own). Standard library only.
"""

import json
import math
import os
import random
import sys

DRAWS = 2000
RATES = [
    ("parse", "parses"),
    ("compile", "compiles"),
    ("correct", "correct"),
    ("fast_1", "correct and faster (fast_1)"),
]
PARTS = ("before", "after", "before_greedy", "after_greedy")


def fail(message):
    print(f"pool_demo: {message}", file=sys.stderr)
    sys.exit(1)


def read(path):
    file = os.path.join(path, "demo.json") if os.path.isdir(path) else path
    try:
        with open(file, encoding="utf-8") as f:
            demo = json.load(f)
        for part in PARTS:
            for item in demo[part]["items"]:
                if item["n"] < 0 or any(not 0 <= item[key] <= 1 for key, _ in RATES) or item["speedup"] < 0:
                    fail(f"{file}: {part}: {item['problem']}: a value is out of range")
        for key in ("seed", "seconds", "peak_rss_mib", "peak_child_rss_mib"):
            demo[key] + 0
    except OSError as e:
        fail(e)
    except (ValueError, KeyError, TypeError) as e:
        fail(f"{file}: not a demo.json: {e!r}")
    return demo


def pool(evaluations):
    """[{problem, n, rates..., n_correct, log_speedup (a sum), by_run: [mean log speed-up or None]}] in one order."""
    rows = []
    for items in zip(*(sorted(e["items"], key=lambda i: i["problem"]) for e in evaluations)):
        n = sum(i["n"] for i in items)
        row = {"problem": items[0]["problem"], "n": n, "n_correct": 0, "log_speedup": 0.0, "by_run": []}
        for key, _ in RATES:
            row[key] = sum(i[key] * i["n"] for i in items) / n if n else 0.0
        for i in items:
            timed = round(i["correct"] * i["n"]) if i["speedup"] > 0 else 0
            row["by_run"].append(math.log(i["speedup"]) if timed else None)
            row["n_correct"] += timed
            row["log_speedup"] += timed * math.log(i["speedup"]) if timed else 0.0
        rows.append(row)
    return rows


def rate(key):
    def statistic(rows, pick):
        judged = [rows[i][key] for i in pick if rows[i]["n"]]
        return sum(judged) / len(judged) if judged else None

    return statistic


def speedup(rows, pick):
    """Geometric mean over correct answers."""
    n = sum(rows[i]["n_correct"] for i in pick)
    return math.exp(sum(rows[i]["log_speedup"] for i in pick) / n) if n else None


def bootstrap(value, n):
    """(value of all, low, high) of value(pick), None where there is nothing to measure."""
    if n == 0:
        return None
    rng = random.Random(0)  # the same draws for every statistic: differences are paired
    mean = value(range(n))
    draws = sorted(v for v in (value([rng.randrange(n) for _ in range(n)]) for _ in range(DRAWS)) if v is not None)
    if mean is None or not draws:
        return None
    return mean, draws[int(0.025 * (len(draws) - 1))], draws[math.ceil(0.975 * (len(draws) - 1))]


def percent(v, sign=False):
    if v is None:
        return "–"
    f = "{:+.1f}" if sign else "{:.1f}"
    return f"{f.format(100 * v[0])} [{f.format(100 * v[1])}, {f.format(100 * v[2])}]"


def times(v):
    return "–" if v is None else f"{v[0]:.2f}x [{v[1]:.2f}, {v[2]:.2f}]"


def combine(f, statistic, a, b):
    def value(pick):
        x, y = statistic(a, pick), statistic(b, pick)
        return None if x is None or y is None else f(x, y)

    return value


def table(title, before, after):
    n = len(before)
    out = [f"**{title}**", "", "| | before | after | change |", "|---|---:|---:|---:|"]
    for key, name in RATES:
        f = rate(key)
        cells = [bootstrap(lambda pick, rows=rows: f(rows, pick), n) for rows in (before, after)]
        change = bootstrap(combine(lambda x, y: y - x, f, before, after), n)
        out.append(f"| {name}, % | {percent(cells[0])} | {percent(cells[1])} | {percent(change, True)} |")
    cells = [bootstrap(lambda pick, rows=rows: speedup(rows, pick), n) for rows in (before, after)]
    change = bootstrap(combine(lambda x, y: y / x, speedup, before, after), n)
    out.append(f"| speed-up of correct kernels | {times(cells[0])} | {times(cells[1])} | {times(change)} |")
    return out + [""]


def paired(before, after):
    """Mean over seeds of ln(after / before) where a seed solved the problem both times; problems with none left out."""
    out = []
    for a, b in zip(before, after):
        d = [y - x for x, y in zip(a["by_run"], b["by_run"]) if x is not None and y is not None]
        if d:
            out.append(sum(d) / len(d))
    return out


def paired_line(name, before, after):
    d = paired(before, after)
    v = bootstrap(lambda pick: math.exp(sum(d[i] for i in pick) / len(pick)), len(d))
    return f"| {name} | {times(v)} | {len(d)} |"


def seed_row(demo):
    cells = [str(demo["seed"])]
    for a, b in (("before", "after"), ("before_greedy", "after_greedy")):
        rows = [pool([demo[part]]) for part in (a, b)]
        every = range(len(rows[0]))
        for key in ("correct", "fast_1"):
            x, y = (rate(key)(r, every) for r in rows)
            cells.append("–" if x is None or y is None else f"{100 * x:.1f} → {100 * y:.1f}")
        x, y = (speedup(r, every) for r in rows)
        cells.append("–" if x is None or y is None else f"{x:.2f} → {y:.2f}")
    cells += [f"{demo['seconds']:.0f}", str(max(demo["peak_rss_mib"], demo["peak_child_rss_mib"]))]
    return "| " + " | ".join(cells) + " |"


def machine():
    name = "unknown CPU"
    try:
        with open("/proc/cpuinfo", encoding="utf-8") as f:
            name = next((line.split(":", 1)[1].strip() for line in f if line.startswith("model name")), name)
    except OSError:
        pass
    return f"{name}, {len(os.sched_getaffinity(0))} CPUs"


def report(demos):
    parts = {part: pool([d[part] for d in demos]) for part in PARTS}
    first = demos[0]["before"]
    seeds = ", ".join(str(d["seed"]) for d in demos)
    missing = sum(d[part]["missing"] for d in demos for part in PARTS)
    out = [
        "# Results of the demo",
        "",
        f"`kernelrl demo` with seeds {seeds}, made by `make experiments`. Machine: {machine()}.",
        f"{first['problems']} held-out problems, of whose operator sequences the model has seen none; for each "
        f"{first['samples']} answers at temperature 1 and one greedy answer, before and after training, for "
        f"every seed.",
        "",
        "![Reward and correct kernels over training steps](demo.svg)",
        "",
        f"## All {len(demos)} seeds" if len(demos) > 1 else "## One seed",
        "",
    ]
    out += table("Temperature 1", parts["before"], parts["after"])
    out += table("Greedy", parts["before_greedy"], parts["after_greedy"])
    out += [
        "Speed of the kernels after training over before, on problems solved both times by the same seed "
        "(the change in "
        "the tables above also moves when harder problems are solved):",
        "",
        "| | after / before | problems |",
        "|---|---:|---:|",
        paired_line("temperature 1", parts["before"], parts["after"]),
        paired_line("greedy", parts["before_greedy"], parts["after_greedy"]),
        "",
        "## Each seed",
        "",
        "| seed | correct, % | fast_1, % | speed-up | greedy: correct, % | fast_1, % | speed-up | wall, s | "
        "peak, MiB |",
        "|---:|---:|---:|---:|---:|---:|---:|---:|---:|",
    ]
    out += [seed_row(d) for d in demos]
    out += [
        "",
        "Intervals: 95 % bootstrap over problems, 2,000 draws, the same ones before and after. Speed-up: "
        "PyTorch eager's "
        "time over the kernel's, geometric mean over correct kernels. Wall: the whole demo, both evaluations included. "
        f"Peak: resident memory of the largest process. Answers without a verdict, left out: {missing}.",
        "",
    ]
    return "\n".join(out)


def main():
    args, out = sys.argv[1:], None
    if args[:1] == ["--out"] and len(args) > 1:
        out, args = args[1], args[2:]
    if not args or args[0].startswith("-"):
        print("usage: tools/pool_demo.py [--out FILE] RUN...", file=sys.stderr)
        sys.exit(2)
    demos = [read(path) for path in args]
    for part in PARTS:
        names = [sorted(i["problem"] for i in d[part]["items"]) for d in demos]
        if any(n != names[0] for n in names) or names[0] != sorted(i["problem"] for i in demos[0]["before"]["items"]):
            fail(f"{part}: the runs do not hold the same problems")
        if len(set(names[0])) != len(names[0]):
            fail(f"{part}: a problem occurs twice")
    if len({d["seed"] for d in demos}) != len(demos):
        fail("two runs have the same seed")
    text = report(demos)
    print(text, end="")
    if out:
        # Later parts of the file, each under a heading of the first level, are others'.
        if os.path.exists(out):
            with open(out, encoding="utf-8") as f:
                parts = f.read().split("\n# ")[1:]
            text += "".join("\n# " + part for part in parts)
        with open(out + ".tmp", "w", encoding="utf-8") as f:
            f.write(text)
        os.replace(out + ".tmp", out)


main()
