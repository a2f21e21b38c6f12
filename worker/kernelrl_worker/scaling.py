"""The problem's own factor of the family `scaled`, and whether inputs that are scaled so take as long as others.

Some problems' outputs hardly depend on the inputs that get_inputs draws: a constant would be accepted as an answer. For
these a factor is looked for whose inputs tell answers apart.
"""

import math

import torch

from kernelrl_worker import compare

USUAL_FACTOR = 3.0
BLIND = 10  # the outputs of two draws that differ by no more tolerances could be answered by a constant
TELLS = 50  # the outputs of two draws that differ by more tolerances could not
FACTORS = (3.0, 0.01, 30.0, 1e3, 1e-3, 1e5, 1e-5, 1e7)
# The clock may run on inputs that take at most SAME_TIME times as long as shipped ones, within SAME_TIME_SLACK_S. A
# forward is timed three times, and the question asked four times, because other processes disturb.
SAME_TIME, SAME_TIME_SLACK_S, SAME_TIME_RUNS, SAME_TIME_LOOKS = 1.25, 5e-6, 3, 4


def differ(one, other):
    """How far apart two results (lists of tensors) are, in tolerances: the distance of the pair that differs least."""
    least = math.inf
    for a, b in zip(one, other):
        if a.numel() == 0:
            continue
        if not a.is_floating_point():
            apart = 0.0 if torch.equal(a, b) else math.inf
        else:
            apart = compare.largest_error(a, b) / compare.TOLERANCE.get(a.dtype, 1e-4)
        least = min(least, apart)
    return least


class Scaling:
    """What the family `scaled` does to inputs: whether it gives them random signs, the factor, and whether the factor
    varies by up to two either way from set to set."""

    def __init__(self, factor=USUAL_FACTOR, signs=True, varies=False, blind=False):
        self.factor, self.signs, self.varies = factor, signs, varies
        self.blind = blind  # true: the problem's own inputs tell nothing, and inputs that are scaled so do

    def factor_for(self, seed):
        if not self.varies:
            return self.factor
        return self.factor * 2.0 ** float(
            torch.rand((), generator=torch.Generator().manual_seed(seed ^ 0x5CA1E)) * 2 - 1
        )


def find_scaling(run, stands, over):
    """The Scaling of a problem; the usual one where its own inputs tell answers apart, or where no factor is found.
    run(scaling, which): the outputs of draw `which` of inputs that are scaled so (None: not scaled), or None where that
    fails. stands(scaling): whether the reference can be trusted on such inputs. over(): whether the search has taken
    too long."""

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


def same_time(seconds, these, shipped):
    """Whether the reference takes as long on these inputs as on shipped ones. seconds(inputs): the time of one forward
    on a private copy of them."""

    def best(inputs):
        return min(seconds(inputs) for _ in range(SAME_TIME_RUNS))

    def alike():
        usual, now = best(shipped), best(these)
        return max(usual, now) <= SAME_TIME * min(usual, now) + SAME_TIME_SLACK_S

    return any(alike() for _ in range(SAME_TIME_LOOKS))
