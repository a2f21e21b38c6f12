#!/usr/bin/env python3
"""tools/plot_demo.py OUT.svg RUN...: reward and share of correct kernels over the steps of training runs.

RUN is a run directory with metrics.jsonl, or such a file. A thin line is a run, the thick one their mean (over the runs
that have the step). Standard library only. The picture has no background and reads on white and on black.
"""

import json
import math
import os
import sys
from html import escape

WIDTH, HEIGHT = 860, 320
TOP, BOTTOM, LEFT, RIGHT, GAP = 56, 44, 46, 14, 58  # margins of the panels, and what lies between the two
PANELS = [  # metric, title, colour, scale, unit
    ("reward/mean", "Mean reward of a step", "#d9730d", 1, ""),
    ("kernel/correct_rate", "Correct kernels of a step", "#2f81d6", 100, "%"),
]
STYLE = """
  text { font: 12px system-ui, -apple-system, 'Segoe UI', Helvetica, Arial, sans-serif; fill: #768089 }
  .title { font-size: 14px; font-weight: 600 }
  .axis { stroke: #848d97; stroke-width: 1 }
  .grid { stroke: #848d97; stroke-width: 1; stroke-opacity: 0.25 }
  .run { fill: none; stroke-width: 1.2; stroke-opacity: 0.55 }
  .mean { fill: none; stroke-width: 3; stroke-linejoin: round; stroke-linecap: round }
  @media (prefers-color-scheme: dark) { text { fill: #9aa4ae } }
"""


def fail(message):
    print(f"plot_demo: {message}", file=sys.stderr)
    sys.exit(1)


def read_run(path):
    """{metric: {step: value}}, steps counted from 1; null values are left out."""
    file = os.path.join(path, "metrics.jsonl") if os.path.isdir(path) else path
    series = {metric: {} for metric, *_ in PANELS}
    try:
        with open(file, encoding="utf-8") as lines:
            for number, line in enumerate(lines, 1):
                if not line.endswith("\n"):
                    break  # a run is still writing it
                row = json.loads(line)
                for metric in series:
                    if row.get(metric) is not None:
                        series[metric][int(row["step"]) + 1] = float(row[metric])
    except OSError as e:
        fail(e)
    except (ValueError, KeyError, TypeError, AttributeError) as e:
        fail(f"{file}:{number}: expected an object with step and numbers: {e!r}")
    for metric in series:
        if not series[metric]:
            fail(f"{file}: no value of {metric}")
    return series


def ticks(low, high, most):
    """Round values that cover low..high in at most `most` steps of 1, 2, 2.5 or 5 times a power of ten."""
    span = high - low or 1
    size = 10 ** math.floor(math.log10(span / most))
    step = next(size * f for f in (1, 2, 2.5, 5, 10, 20) if span / (size * f) <= most)
    first, last = math.floor(low / step + 1e-9), math.ceil(high / step - 1e-9)
    return [i * step for i in range(first, last + 1)]


def polyline(points, css, colour):
    text = " ".join(f"{x:.1f},{y:.1f}" for x, y in points)
    return f'<polyline class="{css}" stroke="{colour}" points="{text}"/>'


def panel(left, width, runs, metric, title, colour, scale, unit):
    bottom, height = HEIGHT - BOTTOM, HEIGHT - TOP - BOTTOM
    lines = [{step: scale * v for step, v in run[metric].items()} for run in runs]
    values = [v for line in lines for v in line.values()]
    last = max(max(line) for line in lines)
    y_ticks = ticks(min(0, min(values)), max(values), 5)
    if unit == "%" and y_ticks[-1] > 100:
        y_ticks = [t for t in y_ticks if t <= 100]
    low, high = y_ticks[0], y_ticks[-1]

    def at(step, value):
        return left + width * (step - 1) / max(1, last - 1), bottom - height * (value - low) / (high - low)

    out = [f'<text class="title" x="{left}" y="{TOP - 22}">{escape(title)}</text>']
    for t in y_ticks:
        y = at(1, t)[1]
        css = "axis" if t == low else "grid"
        out.append(f'<line class="{css}" x1="{left}" x2="{left + width}" y1="{y:.1f}" y2="{y:.1f}"/>')
        out.append(f'<text x="{left - 8}" y="{y + 4:.1f}" text-anchor="end">{t:g}{unit}</text>')
    x_ticks = sorted({1, last} | {int(t) for t in ticks(1, last, 6) if t == int(t) and 1 < t < last})
    # The last step is always named; a neighbour that would touch it is not.
    x_ticks = [t for t in x_ticks if t in (1, last) or min(last - t, t - 1) > 0.07 * last]
    for t in x_ticks:
        x = at(t, low)[0]
        out.append(f'<line class="axis" x1="{x:.1f}" x2="{x:.1f}" y1="{bottom}" y2="{bottom + 4}"/>')
        out.append(f'<text x="{x:.1f}" y="{bottom + 18}" text-anchor="middle">{t}</text>')
    out.append(f'<text x="{left + width / 2:.0f}" y="{bottom + 36}" text-anchor="middle">training step</text>')
    if len(lines) > 1:
        out += [polyline([at(s, line[s]) for s in sorted(line)], "run", colour) for line in lines]
    mean = {}
    for step in range(1, last + 1):
        present = [line[step] for line in lines if step in line]
        if present:
            mean[step] = sum(present) / len(present)
    out.append(polyline([at(s, mean[s]) for s in sorted(mean)], "mean", colour))
    return out


def main():
    if len(sys.argv) < 3:
        print("usage: tools/plot_demo.py OUT.svg RUN...", file=sys.stderr)
        sys.exit(2)
    runs = [read_run(path) for path in sys.argv[2:]]
    width = (WIDTH - LEFT - RIGHT - GAP) / 2
    note = f"thin: each of {len(runs)} runs, thick: their mean" if len(runs) > 1 else "one run"
    out = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" width="{WIDTH}" height="{HEIGHT}" '
        f'role="img" aria-label="Reward and share of correct kernels over training steps">',
        f"<style>{STYLE}</style>",
        f'<text x="{WIDTH - RIGHT}" y="16" text-anchor="end">{note}</text>',
    ]
    for i, spec in enumerate(PANELS):
        out += panel(LEFT + i * (width + GAP), width, runs, *spec)
    with open(sys.argv[1], "w", encoding="utf-8") as file:
        file.write("\n".join(out + ["</svg>", ""]))


main()
