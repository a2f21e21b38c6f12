"""When an output is right, and how far a reference is to be trusted: compare.h's rule on torch tensors.

Both kinds of references (reference.py for answers in C, case.py for modules) are measured by this module, on a CPU or a
GPU, and the outputs of modules are judged by it. compare.c judges those of answers in C by the same rule; a test
(src/verify/rule_test.c) holds the two together.

The error of an element is |got - want| / (scale + |want|). Each row of the expected output has a scale. A row is the
last dimension, with parts of the dimensions before it until it has 64 elements. Only the type's smallest numbers set an
absolute floor. A Limit says how far the scales of rows may differ (`floor`), and what scale an output of few elements
has (`typical`), where the scale of one draw may be luck.
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

CHUNK = 1 << 26  # so many elements are compared at a time
QUICK_CHUNK = 1 << 28  # and so many where nothing is expected to be wrong
TOLERANCE = {torch.float64: TOLERANCE_SINGLE, torch.float32: TOLERANCE_SINGLE}
TOLERANCE |= {torch.float16: TOLERANCE_HALF, torch.bfloat16: TOLERANCE_HALF}
# A row's scale is at least this share of the rows' median. The first share that keeps ten times the reference's own
# error below the tolerance is taken; the last one means one scale for all rows.
FLOORS = (FLOOR_SINGLE, 1e-1, 1.0, 1e30)
MORE_DRAWS = 3  # further draws of inputs for an output of so few elements that the scale and noise of one may be luck


class Limit:
    """How one output of one family of inputs is judged."""

    def __init__(self, dtype, noise=0.0, floor=None, typical=0.0):
        self.noise = noise  # the normalised error of the reference itself
        self.floor = first_floor(dtype) if floor is None else floor
        self.typical = typical  # the scale of an output of few elements over several draws; 0: its own scale counts

    def tolerance(self, dtype):
        return max(TOLERANCE.get(dtype, 0.0), TOLERANCE_NOISES * self.noise)


def first_floor(dtype):
    """The floor that is tried first. Half types round by about their tolerance, so no row of them can be held to less
    than a typical row."""
    return FLOORS[0] if dtype in (torch.float32, torch.float64) else FLOOR_HALF


def smallest_scale(dtype):
    """The scale that forgives results which are flushed to zero. Nobody flushes float16: there it forgives one step
    between denormals."""
    least = 2.0**-24 if dtype == torch.float16 else torch.finfo(dtype).tiny
    return least / TOLERANCE[dtype]


def row_length(shape):
    """The number of elements of a row. It divides the number of all elements, and no row is a part of the last
    dimension."""
    length = 1
    for size in reversed(shape):
        if length > 1 and length * size >= ROW_ELEMENTS:
            return length * next(k for k in range(1, size + 1) if size % k == 0 and length * k >= ROW_ELEMENTS)
        length *= size
        if length >= ROW_ELEMENTS:
            break
    return max(length, 1)


def _squares(rows):
    """The sum of the squares and the number of the finite elements of each row, as float64 on the tensor's device."""
    count, length = rows.shape
    step = QUICK_CHUNK if rows.is_cuda else CHUNK
    # A GPU adds up in a tree, so that six digits are right in float32, at five times the speed.
    wide = torch.float32 if rows.is_cuda and rows.dtype != torch.float64 else torch.float64
    sums = []
    for start in range(0, count, max(1, step // length)):
        block = rows[start : start + max(1, step // length)]
        parts = [torch.linalg.vector_norm(p, dim=1, dtype=wide).double() ** 2 for p in block.split(step, dim=1)]
        sums.append(sum(parts[1:], parts[0]))
    total = torch.cat(sums)
    number = torch.full_like(total, length)
    odd = ~torch.isfinite(total)
    if wide == torch.float32:  # squares may vanish
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
    """The root mean square of the finite elements; 0 for integers."""
    if not t.is_floating_point() or t.numel() == 0:
        return 0.0
    total, number = _squares(t.reshape(1, -1))
    return math.sqrt(float(total) / max(float(number), 1.0))


class Scales:
    """The scales of the rows of an expected output."""

    def __init__(self, want, limit):
        self.length = row_length(want.shape)
        dtype = want.dtype
        if not want.is_floating_point() or want.numel() == 0:
            self.rows = torch.zeros(1, device=want.device)
            return
        total, number = _squares(want.reshape(-1, self.length))
        self.rms = (total / number.clamp(min=1)).sqrt()
        # No row's scale exceeds that of all rows together: else a row with an outlier would be held to less than they.
        self.whole = (total.sum() / number.sum().clamp(min=1)).sqrt()
        there = self.rms[self.rms > 0]
        self.median = float(there.median()) if there.numel() else 0.0
        self.narrow = dtype != torch.float64 and want.is_cuda
        self.least = smallest_scale(dtype)
        self.apply(limit)

    def apply(self, limit):
        """Computes the scales of the same output by another limit."""
        least = max(limit.typical, self.least)
        if self.median == 0:
            self.rows = torch.full_like(self.rms, max(least, ZERO_SCALE))
        else:
            self.rows = torch.minimum(self.rms.clamp(min=limit.floor * self.median), self.whole).clamp(min=least)
        if self.narrow:
            self.rows = self.rows.float()

    def over(self, start, stop):
        """The scales of elements start to stop of the flat output."""
        if self.rows.numel() == 1:
            return self.rows
        first, last = start // self.length, (stop - 1) // self.length
        flat = self.rows[first : last + 1].unsqueeze(1).expand(-1, self.length).reshape(-1)
        return flat[start - first * self.length : stop - first * self.length]


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
    """One kernel that computes ERROR on float32 tensors of a GPU; False where PyTorch cannot make it."""
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
    """The largest ERROR of flat tensors, in four passes over memory instead of some thirty; None where there is no
    kernel for it."""
    fused = want.is_cuda and want.is_floating_point() and want.numel() and fused_error()
    if not fused:
        return None
    figures = []
    by_rows = isinstance(scales, Scales) and scales.rows.numel() > 1
    step = QUICK_CHUNK if by_rows or scales.rows.numel() == 1 else CHUNK
    if by_rows:  # whole rows: the scale of each is read once, and no tensor of scales is made
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
    """Compares two tensors of equal shape: how many elements are wrong, how many of these are not finite, the first
    one, what it is and should be, and the largest error. tolerance: what a normalised error may be (None: any);
    compatible: the tolerance of allclose (None: not applied); scales: those of `want`, or of what it is a part of.
    Figures stay on the device until the end: asking for one between any two pieces would cost more than the pieces."""
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
    """The largest error of the elements that are finite in both tensors."""
    scales = scales or Scales(want, limit or Limit(want.dtype))
    worst = fused_worst(want.reshape(-1), got.reshape(-1), None, scales)
    if worst is None and want.is_floating_point() and 0 < want.numel() <= CHUNK:
        rows = want.reshape(-1, scales.length)
        wide = torch.promote_types(want.dtype, got.dtype)  # mixed types in one operation are slow
        rows, others = rows.to(wide), got.reshape(rows.shape).to(wide)
        error = (others - rows).abs_()
        worst = float(error.div_(rows.abs().add_(scales.rows.unsqueeze(1).to(wide))).max())
    if worst is None or worst != worst:  # NaN: some element is not finite, which takes the slower way
        worst = float(compare(want, got, 0.0, None, scales)["max_error"])
    return worst


def typical_scale(draws):
    """The scale of an output over several draws of inputs; 0 where one draw has enough elements to say."""
    if draws[0].numel() >= ROW_ELEMENTS or not draws[0].is_floating_point():
        return 0.0
    sizes = sorted(s for s in map(rms_of, draws) if s > 0)
    return sizes[(len(sizes) - 1) // 2] if sizes else 0.0


def limit_of(pairs, known=True):
    """The Limit of an output. pairs: for each of several draws of inputs, what the reference gives and what it gives in
    float64 (or None). known: whether the second is float64's. Else it is a float32 result of inputs that differ in
    their last bits, which says less, so that all rows are held to the scale of a typical one."""
    dtype = pairs[0][0].dtype
    if not pairs[0][0].is_floating_point():
        return Limit(dtype, floor=1.0)
    typical = typical_scale([mine for mine, _ in pairs])
    first = first_floor(dtype) if known else 1.0
    scales = [Scales(mine, Limit(dtype)) for mine, _ in pairs]
    # All floors are the same where there is one row.
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


def draws_wanted(outputs):
    """How many further draws of inputs say how outputs like these are judged."""
    few = any(o.is_floating_point() and o.numel() < ROW_ELEMENTS for o in outputs)
    return MORE_DRAWS if few else 0


def limits_of(draws, exact, shaken):
    """The Limit of each output, by how far the reference is from float64: where a sum cancels or an exponential is
    steep, no kernel can come closer. draws: (inputs, outputs, seed) of several draws. exact(inputs, outputs, seed): the
    outputs in float64, None in the place of one that is not measured, or None where float64 cannot run; then it is not
    asked again. shaken(inputs, outputs, seed): what the reference gives, once or more often, for inputs that differ in
    their last bits; it is asked in the place of float64, and an entry of it may be None."""
    pairs, known = [[] for _ in draws[0][1]], True
    for inputs, outputs, seed in draws:
        true = exact(inputs, outputs, seed) if known else None
        known = true is not None
        for other in [true] if known else shaken(inputs, outputs, seed):
            for index, pair in enumerate(pairs):
                pair.append((outputs[index], other[index] if other else None))
    return [limit_of(pair, known) for pair in pairs]


def moved(before, after):
    """How far outputs have moved, in tolerances: the distance of the one that has moved most. None: one of them is not
    finite any more."""
    most = 0.0
    for a, b in zip(before, after):
        if a.is_floating_point() and a.numel():
            if not bool(torch.isfinite(b).all()):
                return None
            most = max(most, largest_error(a, b) / TOLERANCE[a.dtype])
    return most
