"""When an output is right: compare.h's rule on torch tensors, on a CPU or a GPU. compare.c has the same for backend c,
and a test (src/verify/rule_test.c) holds the two together.

The error of an element is |got - want| / (scale + |want|), with a scale for each row of the expected output. A row is
the last dimension, with parts of the ones before it until it has 64 elements. There is no absolute floor but what the
type's smallest numbers force; how far rows may differ in scale (`floor`) and what is a draw's luck (`typical`) is in
Limit.
"""

import math

import torch

from kernelrl_worker.constants import (
    FLOOR_HALF,
    FLOOR_SINGLE,
    ROW_ELEMENTS,
    TOLERANCE_HALF,
    TOLERANCE_NOISES,
    TOLERANCE_SINGLE,
    ZERO_SCALE,
)

CHUNK = 1 << 26  # elements compared at a time
QUICK_CHUNK = 1 << 28  # when nothing is expected to be wrong
TOLERANCE = {torch.float64: TOLERANCE_SINGLE, torch.float32: TOLERANCE_SINGLE}
TOLERANCE |= {torch.float16: TOLERANCE_HALF, torch.bfloat16: TOLERANCE_HALF}
# A row's scale is at least this share of the rows' median. The first that keeps ten times the reference's own error
# below the tolerance is taken; the last is one scale for all rows.
FLOORS = (FLOOR_SINGLE, 1e-1, 1.0, 1e30)
# Inputs that tell answers apart: times the tolerance that one changed element has to move some output, and of how many
# inputs one is changed; draws of inputs, where an output has so few elements that the scale and noise of one may be
# luck; times what shipped inputs take, at most, for inputs that the clock may run on.
SHOWS, MOST_TOUCHED, MORE_DRAWS, SAME_TIME = 50, 3, 3, 1.25


class Limit:
    """How one output of one family of inputs is judged."""

    def __init__(self, dtype, noise=0.0, floor=None, typical=0.0):
        self.noise = noise  # normalised error of the reference itself
        self.floor = first_floor(dtype) if floor is None else floor
        self.typical = typical  # scale of an output of few elements, over several draws; 0: it speaks for itself

    def tolerance(self, dtype):
        return max(TOLERANCE.get(dtype, 0.0), TOLERANCE_NOISES * self.noise)


def first_floor(dtype):
    """Half types round by about their tolerance: no row can be held to less than a typical one."""
    return FLOORS[0] if dtype in (torch.float32, torch.float64) else FLOOR_HALF


def smallest_scale(dtype):
    """Forgives results that are flushed to zero; of float16, which nobody flushes, one step between denormals."""
    least = 2.0**-24 if dtype == torch.float16 else torch.finfo(dtype).tiny
    return least / TOLERANCE[dtype]


def row_length(shape):
    """Elements of a row. It divides the number of all, and no row is a part of the last dimension."""
    length = 1
    for size in reversed(shape):
        if length > 1 and length * size >= ROW_ELEMENTS:
            return length * next(k for k in range(1, size + 1) if size % k == 0 and length * k >= ROW_ELEMENTS)
        length *= size
        if length >= ROW_ELEMENTS:
            break
    return max(length, 1)


def _squares(rows):
    """Sum of squares and number of the finite elements of each row, as float64 on the tensor's device."""
    count, length = rows.shape
    step = QUICK_CHUNK if rows.is_cuda else CHUNK
    # A GPU adds up in a tree: six digits are right in float32, at five times the speed.
    wide = torch.float32 if rows.is_cuda and rows.dtype != torch.float64 else torch.float64
    sums = []
    for start in range(0, count, max(1, step // length)):
        block = rows[start : start + max(1, step // length)]
        parts = [torch.linalg.vector_norm(p, dim=1, dtype=wide).double() ** 2 for p in block.split(step, dim=1)]
        sums.append(sum(parts[1:], parts[0]))
    total = torch.cat(sums)
    number = torch.full_like(total, length)
    odd = ~torch.isfinite(total)
    if wide == torch.float32:  # squares that vanish
        odd |= (total < 1e-24) & (torch.linalg.vector_norm(rows, ord=math.inf, dim=1) > 0)
    if bool(odd.any()):
        for row in torch.nonzero(odd).view(-1).split(max(1, step // 8 // length)):
            some = rows[row]
            known = torch.isfinite(some)
            total[row] = (
                torch.where(known, some.double(), torch.zeros((), dtype=torch.float64, device=rows.device))
                .pow(2)
                .sum(1)
            )
            number[row] = known.sum(1).double()
    return total, number


def rms_of(t):
    """Root mean square of the finite elements; 0 for integers."""
    if not t.is_floating_point() or t.numel() == 0:
        return 0.0
    total, number = _squares(t.reshape(1, -1))
    return math.sqrt(float(total) / max(float(number), 1.0))


class Scales:
    """Of the rows of an expected output."""

    def __init__(self, want, limit):
        self.length = row_length(want.shape)
        dtype = want.dtype
        if not want.is_floating_point() or want.numel() == 0:
            self.rows = torch.zeros(1, device=want.device)
            return
        total, number = _squares(want.reshape(-1, self.length))
        self.rms = (total / number.clamp(min=1)).sqrt()
        # One scale for all: what no row's may exceed, lest a row with an outlier is held to less than all together.
        self.whole = (total.sum() / number.sum().clamp(min=1)).sqrt()
        there = self.rms[self.rms > 0]
        self.median = float(there.median()) if there.numel() else 0.0
        self.narrow = dtype != torch.float64 and want.is_cuda
        self.least = smallest_scale(dtype)
        self.apply(limit)

    def apply(self, limit):
        """The same output by another limit."""
        least = max(limit.typical, self.least)
        if self.median == 0:
            self.rows = torch.full_like(self.rms, max(least, ZERO_SCALE))
        else:
            self.rows = torch.minimum(self.rms.clamp(min=limit.floor * self.median), self.whole).clamp(min=least)
        if self.narrow:
            self.rows = self.rows.float()

    def over(self, start, stop):
        """For elements start to stop of the flat output."""
        if self.rows.numel() == 1:
            return self.rows
        first, last = start // self.length, (stop - 1) // self.length
        flat = self.rows[first : last + 1].unsqueeze(1).expand(-1, self.length).reshape(-1)
        return flat[start - first * self.length : stop - first * self.length]


class SampledScales:
    """For the elements that a sample (referee.py) has of an output: `places(start, stop)` says where they are in it."""

    def __init__(self, scales, places):
        self.scales, self.places = scales, places
        self.rows = scales.rows

    def over(self, start, stop):
        if self.rows.numel() == 1:
            return self.rows
        return self.rows[torch.div(self.places(start, stop), self.scales.length, rounding_mode="floor")]


# The error of one element, 1e30 where nothing can make it right.
ERROR = """
template <typename T> T element_error(T want, T got, T scale, T compatible) {
    const T most = 3.4028234e38f, wrong = 1e30f;
    const T size = want < 0 ? -want : want;
    const T difference = got < want ? want - got : got - want;
    if (!(size <= most)) return (want == got || (want != want && got != got)) ? T(0) : wrong;
    if (!(difference <= most)) return wrong;
    if (compatible > 0 && !(difference <= compatible * size + compatible)) return wrong;
    return difference / (size + scale);
}
"""
_fused = None


def fused_error():
    """One kernel for ERROR on float32 tensors of a GPU; False where PyTorch cannot make it."""
    global _fused
    if _fused is None:
        try:
            _fused = torch.cuda.jiterator._create_jit_fn(ERROR, compatible=0.0)
            one = torch.ones(2, 8, device="cuda")
            told = _fused(one, 2 * one, torch.tensor([[1.0], [3.0]], device="cuda"), compatible=0.0)
            if told.amax(1).tolist() != [0.5, 0.25]:
                _fused = False
        except Exception:
            _fused = False
    return _fused


def fused_worst(want, got, compatible, scales):
    """The largest ERROR of flat tensors, in four passes over memory instead of some thirty; None where it cannot be
    had that way."""
    fused = want.is_cuda and want.is_floating_point() and want.numel() and fused_error()
    if not fused:
        return None
    figures = []
    by_rows = isinstance(scales, Scales) and scales.rows.numel() > 1
    step = QUICK_CHUNK if by_rows or scales.rows.numel() == 1 else CHUNK
    if by_rows:  # in whole rows: the scale of each is read once, and no tensor is made of them
        step = max(1, step // scales.length) * scales.length
    for start in range(0, want.numel(), step):
        w, g = want[start : start + step], got[start : start + step]
        w = w if w.dtype == torch.float64 else w.float()
        g = g.to(w.dtype)
        if by_rows:
            w, g = w.view(-1, scales.length), g.reshape(-1, scales.length)
            first = start // scales.length
            scale = scales.rows[first : first + w.shape[0]].unsqueeze(1)
        else:
            scale = scales.over(start, start + w.numel())
        figures.append(fused(w, g, scale.to(w.dtype), compatible=compatible or 0.0).max())
    return float(torch.stack(figures).max())


def compare(want, got, tolerance, compatible, scales=None):
    """Of torch tensors of equal shape. tolerance of the normalised error (None: not applied); compatible: that of
    allclose (None: not applied); scales: of `want`, or of what it is a part of. Figures stay on the device until the
    end: asking for one between any two pieces would cost more than the pieces."""
    result = {"different": 0, "not_finite": 0, "first": -1, "max_error": 0.0, "got": 0.0, "want": 0.0}
    scales = scales or Scales(want, Limit(want.dtype))
    want, got = want.reshape(-1), got.reshape(-1)
    worst = fused_worst(want, got, compatible, scales)
    if worst is not None and worst <= (1e29 if tolerance is None else tolerance):
        result["max_error"] = worst
        return result
    figures, masks = [], []

    def wrong(start):
        w, g = want[start : start + CHUNK], got[start : start + CHUNK]
        if not w.is_floating_point():
            bad = w != g
            count = bad.sum().double()
            return bad, torch.stack([count, torch.zeros_like(count), (count > 0).double()])
        if w.dtype != torch.float32 or w.device.type == "cpu":
            w, g = w.double(), g.double()
        finite, known = torch.isfinite(w), torch.isfinite(g)
        size = w.abs()
        difference = (g - w).abs()
        error = difference / (size + scales.over(start, start + w.numel()))
        bad = finite & ~known
        if tolerance is not None:
            bad |= ~(error <= tolerance)
        if compatible is not None:
            bad |= ~(difference <= compatible * size + compatible)
        # Where the reference is not finite: the same infinity, or any NaN.
        bad = torch.where(finite, bad, ~((w == g) | (torch.isnan(w) & torch.isnan(g))))
        worst = torch.where(finite & known, error, torch.zeros_like(error)).max()
        return bad, torch.stack([bad.sum().double(), (finite & ~known).sum().double(), worst.double()])

    for start in range(0, want.numel(), CHUNK):
        bad, figure = wrong(start)
        figures.append(figure)
        masks.append(bad if len(masks) < 8 else None)
    for index, (count, not_finite, worst) in enumerate(torch.stack(figures).tolist() if figures else []):
        if count and result["first"] < 0:
            bad = wrong(index * CHUNK)[0] if masks[index] is None else masks[index]
            at = index * CHUNK + int(torch.nonzero(bad)[0])
            result.update(first=at, got=float(got[at]), want=float(want[at]))
        result["different"] += int(count)
        result["not_finite"] += int(not_finite)
        result["max_error"] = max(result["max_error"], worst)
    for key in ("got", "want", "max_error"):
        if isinstance(result[key], float) and not math.isfinite(result[key]):
            result[key] = repr(result[key])
    return result


def largest_error(want, got, limit=None, scales=None):
    """Over the elements that are finite in both."""
    scales = scales or Scales(want, limit or Limit(want.dtype))
    worst = fused_worst(want.reshape(-1), got.reshape(-1), None, scales)
    if worst is None and want.is_floating_point() and 0 < want.numel() <= CHUNK:
        rows = want.reshape(-1, scales.length)
        wide = torch.promote_types(want.dtype, got.dtype)  # mixed types in one operation are slow
        rows, others = rows.to(wide), got.reshape(rows.shape).to(wide)
        error = (others - rows).abs_()
        worst = float(error.div_(rows.abs().add_(scales.rows.unsqueeze(1).to(wide))).max())
    if worst is None or worst != worst:  # a NaN: something is not finite, which is slower
        worst = float(compare(want, got, 0.0, None, scales)["max_error"])
    return worst


def typical_scale(draws):
    """Of one output in several draws of inputs: 0 where a single one has elements enough to say."""
    if draws[0].numel() >= ROW_ELEMENTS or not draws[0].is_floating_point():
        return 0.0
    sizes = sorted(s for s in map(rms_of, draws) if s > 0)
    return sizes[(len(sizes) - 1) // 2] if sizes else 0.0


def limit_of(pairs, known=True):
    """The Limit of an output from several draws' (what the reference gives, what it gives in float64, or None). known:
    whether the second is float64's; else it is a float32 result of inputs that differ in their last bits, which says
    less, so that all rows are held to a typical one's scale."""
    dtype = pairs[0][0].dtype
    if not pairs[0][0].is_floating_point():
        return Limit(dtype, floor=1.0)
    typical = typical_scale([mine for mine, _ in pairs])
    first = first_floor(dtype) if known else 1.0
    scales = [Scales(mine, Limit(dtype)) for mine, _ in pairs]
    # Of one row all floors are one.
    floors = [f for f in FLOORS if f >= first] if scales[0].rows.numel() > 1 else [first]
    for floor in floors:
        limit = Limit(dtype, 0.0, floor, typical)
        for (mine, true), scale in zip(pairs, scales):
            if true is not None and true.shape == mine.shape and mine.numel():
                scale.apply(limit)
                limit.noise = max(limit.noise, largest_error(mine, true, scales=scale))
        if TOLERANCE_NOISES * limit.noise <= TOLERANCE[dtype]:
            break
    return limit


def differ(one, other):
    """How far apart two results (lists of tensors) are, in tolerances: of the output that differs least."""
    least = math.inf
    for a, b in zip(one, other):
        if a.numel() == 0:
            continue
        if not a.is_floating_point():
            apart = 0.0 if torch.equal(a, b) else math.inf
        else:
            apart = largest_error(a, b) / TOLERANCE.get(a.dtype, 1e-4)
        least = min(least, apart)
    return least


# ---- the problem's own factor of the family `scaled` ----

USUAL_FACTOR = 3.0
BLIND = 10  # outputs of two draws that are no more tolerances apart could be answered by a constant
TELLS = 50  # and with this many they could not
FACTORS = (3.0, 0.01, 30.0, 1e3, 1e-3, 1e5, 1e-5, 1e7)


class Scaling:
    """What the family `scaled` does to inputs: random signs or not, a factor, and whether that varies by up to two
    either way from set to set."""

    def __init__(self, factor=USUAL_FACTOR, signs=True, varies=False, blind=False):
        self.factor, self.signs, self.varies = factor, signs, varies
        self.blind = blind  # the problem's own inputs tell nothing, these do

    def factor_for(self, seed):
        if not self.varies:
            return self.factor
        return self.factor * 2.0 ** float(
            torch.rand((), generator=torch.Generator().manual_seed(seed ^ 0x5CA1E)) * 2 - 1
        )


def find_scaling(run, stands, over):
    """run(scaling or None, which): outputs of draw `which` of inputs scaled so, None: as the problem makes them; None
    where that fails. stands(scaling): whether the reference can be trusted on these. over(): whether it has taken too
    long."""

    def telling(scaling, enough):
        one, other = run(scaling, 0), run(scaling, 1)
        if one is None or other is None:
            return False
        finite = all(bool(torch.isfinite(t).all()) for t in one + other if t.is_floating_point())
        return finite and differ(one, other) > enough

    first = [run(None, which) for which in (0, 1)]
    if None in first or differ(*first) > BLIND:
        return Scaling()
    for signs in (True, False):
        for factor in FACTORS:
            for varies in (False, True):
                scaling = Scaling(factor, signs, varies, True)
                if over():
                    return Scaling()
                if telling(scaling, TELLS) and stands(scaling):
                    return scaling
    return Scaling()
