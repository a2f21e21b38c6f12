"""tests/clients/read_events.py RUN: TensorBoard's own reader against metrics.jsonl. Needs the package tensorboard."""

import glob
import json
import math
import re
import sys

from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from tensorboard.plugins.custom_scalar import layout_pb2

run = sys.argv[1]
files = glob.glob(run + "/tensorboard/events.out.tfevents.*")
assert files, "no event file"
seen = {}  # tag -> {step: value}
histograms, texts = set(), set()
for f in files:  # one a process that wrote
    acc = EventAccumulator(f, size_guidance={"scalars": 0, "histograms": 0, "tensors": 0})
    acc.Reload()
    for tag in acc.Tags()["scalars"]:
        seen.setdefault(tag, {}).update({e.step: e.value for e in acc.Scalars(tag)})
    histograms.update(acc.Tags()["histograms"])
    texts.update(acc.Tags()["tensors"])
rows = [json.loads(line) for line in open(run + "/metrics.jsonl")]
OWN = {
    "reward/std": "Reward/StdDev",
    "progress/done_frac": "Progress/CompletionFraction",
    "optim/lr": "Optimizer/LearningRate",
    "time/assemble_data": "Timing/Assemble_Data",
    "time/save_checkpoint": "Timing/Save_Checkpoint",
    "time/rollout": "Timing/Rollout",
    "time/train": "Timing/Train",
    "time/total": "Timing/Total",
    "eval/fast_1_rate": "Eval/Fast1x",
    "eval/fast_2_rate": "Eval/Fast2x",
}


def tag_of(name):
    if name in OWN:
        return OWN[name]
    return re.sub(r"(^|[/_])([a-z]?)", lambda m: ("/" if m[1] == "/" else "") + m[2].upper(), name)


compared = 0
for row in rows:
    step = row.pop("step")
    for name, value in row.items():
        if value is None or not math.isfinite(value):
            continue
        tag = tag_of(name)
        assert tag in seen and step in seen[tag], f"{name}: no {tag} of step {step}"
        got = seen[tag][step]
        assert abs(got - value) <= 1e-6 * abs(value) + 1e-30, f"{tag} of step {step}: {got}, metrics.jsonl has {value}"
        compared += 1
assert compared > 50, compared
assert {"Distributions/Rewards", "Distributions/Advantages"} <= histograms, histograms
assert any("Configuration" in t for t in texts), texts
# The charts of several scalars: each line of theirs is a scalar that is there (those of evaluations where there are
# any).
acc = EventAccumulator(sorted(files)[0], size_guidance={"tensors": 0})
acc.Reload()
layout = layout_pb2.Layout()
layout.ParseFromString(acc.Tensors("custom_scalars__config__")[0].tensor_proto.string_val[0])
charts = [c for category in layout.category for c in category.chart]
assert len(charts) >= 4, layout
for c in charts:
    for line in c.multiline.tag:
        assert line.startswith("^Eval/") or any(re.match(line, t) for t in seen), f"{c.title}: no {line}"
print(f"{compared} values agree; {len(histograms)} histograms")
