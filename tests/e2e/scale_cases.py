#!/usr/bin/env python3
"""tests/e2e/scale_cases.py: tools/scale_simulation beside closed forms, and beside a measured step."""

import importlib.machinery
import importlib.util
import json
import os
import statistics
import sys

sys.dont_write_bytecode = True
TOOL = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..", "tools", "scale_simulation")
loader = importlib.machinery.SourceFileLoader("scale_simulation", TOOL)
tool = importlib.util.module_from_spec(importlib.util.spec_from_loader("scale_simulation", loader))
loader.exec_module(tool)
simulate, Rates, Answer, Batch = tool.simulate, tool.Rates, tool.Answer, tool.Batch
cut_leaves, cut_pieces = tool.cut_leaves, tool.cut_pieces


def flat(figures):
    """The figures with steps whose time does not grow with the context, no prefill and no host: closed forms are of
    such ones."""
    plain = json.loads(json.dumps(figures))
    for m in plain["models"].values():
        m.pop("prefill_tokens_per_s", None)
        m.pop("kv_bytes_per_token", None)
    plain["host_s_per_answer"]["value"] = 0.0
    plain["memory_bytes_per_s"]["value"] = 1e30
    return plain


def cases(figures):
    """(what, simulated, closed form, how far they may be apart). S answers of L tokens, R ranks, B = S / R."""
    plain, none = flat(figures), {"verifiers": 0}
    rates = Rates(plain, "7b")
    for ranks in (1, 2, 4, 8):
        b = 128 // ranks
        run = simulate(plain, ranks=ranks, **none)
        yield f"sampling, {ranks} ranks: S L / (R rate(B))", run.mean("generate"), 1024 * rates.step(b), 1e-9
        leaves = cut_leaves(run.batches(0), 16384)
        rounds = -(-len(leaves) // ranks)
        fold, n = Rates(plain, "7b", ranks), rates.trained
        send = 4 * n * (ranks - 1) / ranks / 360e9 + 3e-5 if ranks > 1 else 0
        closed = sum(rates.leaf(max(leaves[i : i + ranks])) for i in range(0, len(leaves), ranks)) + (rounds + 1) * send
        yield f"training, {ranks} ranks: ceil(leaves / R) rounds and their fold", run.mean("train"), closed, 1e-9
        yield f"slots of leaves, {ranks} ranks", run.rounds * ranks - run.idle_leaves, 6 * len(leaves), 0
        yield f"fold, {ranks} ranks, bytes / bandwidth", fold.fold(ranks, ranks) + fold.gather(ranks), 2 * send, 1e-6
    # The published table of this fold: 7B, LoRA of rank 32, scatter and gather, 4 and 8 ranks.
    for link, ranks, ms in (("nvlink", 4, 1.4), ("nvlink", 8, 1.6), ("port", 4, 11), ("port", 8, 13)):
        r = Rates(plain, "7b", ranks, link)
        yield f"fold over {link}, {ranks} ranks, ms", 1e3 * (r.fold(ranks, ranks) + r.gather(ranks)), ms, 0.06
    # Weak scaling costs nothing but the fold.
    one, eight = (simulate(plain, ranks=r, problems=8 * r, **none).mean("total") for r in (1, 8))
    yield "weak scaling, 8 ranks against 1", eight / one, 1.0, 0.01
    # Verdicts: exposed S t / n without overlap, max(0, S t / n - the model's time) with a batch ahead.
    alone = simulate(plain, **none).mean("total")
    for slots in (4, 16, 64):
        o = {"verifiers": slots, "verdict": 1.0}
        run = simulate(plain, stream=0, **o)
        yield f"verdicts waited for, {slots} slots: S t / n", run.mean("verify"), 128 / slots, 0.05
        ahead = simulate(plain, staleness=1, steps=12, **o)
        steady = statistics.fmean(s["total"] for s in ahead.step[2:-1])
        yield f"a step with a batch ahead, {slots} slots: the longer of the two", steady, max(alone, 128 / slots), 0.03
    run = simulate(plain, verifiers=64, verdict=1.0, stream=0)
    yield "verifiers' work: S t", run.verifiers.busy_s, 6 * 128 * 1.0, 1e-9
    run = simulate(plain, verifiers=10**6, verdict=1e-6, stream=0, problems=64, group=16)
    yield "journal: S / 64 commits", run.mean("verify"), 1024 / 64 * 0.005, 0.07
    host = [simulate(plain, ranks=8, problems=64, host=h, **none).mean("generate") for h in (0.01, 0)]
    yield "host of rank 0: S c more than without", host[0] - host[1], 1024 * 0.01, 1e-6
    run = simulate(plain, save_every=1, **none)
    yield "checkpoint: 12 n / disk", run.mean("save"), 12 * rates.trained / 2e9, 1e-9
    # Verdicts that are lost come again after the lease.
    lost = simulate(plain, verifiers=1000, verdict=1.0, stream=0, lost_verdicts=0.05, lease=30, steps=4)
    yield "lost verdicts: the lease once more", max(s["verify"] for s in lost.step) // 31, 1, 0
    # Faults: each costs the reload, and on average half of what lies between two checkpoints.
    o = {"problems": 2, "mean": 256, "steps": 1500, "reload": 5.0, **none}
    step = simulate(plain, **dict(o, steps=4)).mean("total")
    for every in (1, 4):
        run = simulate(plain, mtbf_hours=0.03, save_every=every, save_behind=1, **o)
        per = 5.0 + every * step / 2
        closed = 1500 * step + run.failures * per
        yield f"faults, a checkpoint every {every} steps: reload and half of that", run.events.now, closed, 0.03
    # Measured, not computed: a GRPO step of one H200.
    seen, run = figures["grpo_step"], simulate(figures, host=0, train_tokens=16880, **none)
    yield "an H200's GRPO step, sampling (measured)", run.mean("generate"), seen["sampling_s"], 0.03
    yield "an H200's GRPO step, training (measured)", run.mean("train"), seen["training_s"], 0.03


def bounds(figures):
    """(what, whether it holds) of answers of many lengths."""
    plain = flat(figures)
    rates = Rates(plain, "7b")
    for ranks in (1, 3, 8):
        run = simulate(plain, ranks=ranks, spread=0.8, steps=3, verifiers=0)
        batches = [run.batches(i) for i in range(3)]
        for i, b in enumerate(batches):
            tokens, longest = sum(a.tokens for a in b.rows), max(a.tokens for a in b.rows)
            least = max(longest * rates.step(1), tokens * rates.step(128 / ranks) / 128)
            most = tokens * rates.step(1) / ranks + longest * rates.step(128)
            yield f"sampling, {ranks} ranks, step {i}: between its bounds", least <= run.step[i]["generate"] <= most
    again = [simulate(figures, ranks=4, spread=0.8, staleness=1, seed=3, steps=3).step for _ in range(2)]
    yield "the same seed, the same times", again[0] == again[1]
    other = simulate(figures, ranks=4, spread=0.8, staleness=1, seed=4, steps=3).step
    yield "another seed, other times", again[0] != other
    rows = [a for g in range(3) for a in [Answer(g, 100, 0)] * 4]
    yield "a prompt's answers in few and even micro-batches", cut_leaves(Batch(0, [50] * 3, rows), 300) == [248] * 6
    yield "small prompts share one", cut_leaves(Batch(0, [50] * 3, rows), 900) == [892, 446]
    yield "pieces, 3 ranks", [len(p) for p in cut_pieces(Batch(0, [50] * 3, rows), 3)] == [1] * 12


def main():
    figures = tool.load_figures()
    failed = count = 0
    results = [(f"{what}: {a:.6g}, {b:.6g}", abs(a - b) <= far * abs(b) + 1e-12) for what, a, b, far in cases(figures)]
    for what, holds in results + list(bounds(figures)):
        count += 1
        failed += not holds
        print(f"{'ok' if holds else 'not ok'} {count} - {what}")
    print(f"1..{count}")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
