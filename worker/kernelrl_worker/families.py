"""The families of inputs: what is done to the inputs that get_inputs draws.

A set of inputs is (family, seed, parameter set). Whoever makes it again gets the same numbers. Most families change
every floating-point element of every input. `probe` and `touched` change one element of one input, by so much that the
reference's output must change: whoever leaves out a part of the elements is told by them from who has looked at all.
`probe` finds out for the element that it changes how much that is. `touched` changes an element in any place by as much
as was found to show in some place of that input: around timed calls nobody has time to find out for each.
"""

from typing import Callable, NamedTuple, Optional

import torch

from kernelrl_worker import compare
from kernelrl_worker.constants import (
    FAMILY_NEGATED,
    FAMILY_OFFSET,
    FAMILY_PROBE,
    FAMILY_SCALED,
    FAMILY_SHIPPED,
    FAMILY_SIGNED,
    FAMILY_SMALL,
    FAMILY_SPIKES,
    FAMILY_TOUCHED,
    FAMILY_UNIT,
)
from kernelrl_worker.sample import unravel
from kernelrl_worker.scaling import Scaling

SMALL = 0.01  # the factor of `small`, and the spread of `unit`
OFFSET = 50  # far from zero for data of size one: variances and differences that cancel lose half their digits
SPIKE, SPIKE_LEAST = 100, 128  # how large spikes are: so many times their own size, and this much more
SPIKES_LEAST, SPIKES_SHARE, SPIKES_MOST = 8, 1e-4, 0.5  # how many there are
MIX = 0x9E3779B1  # 2**32 / golden ratio: spreads neighbouring numbers
SHOWS = 50  # tolerances by which one changed element has to move some output
MOST_TOUCHED = 3  # inputs of which an element is changed
TOUCH_FACTORS = (10.0, 300.0, 1e4, 1e6)  # how large a changed element is tried, in sizes of its input


def is_float(value):
    return isinstance(value, torch.Tensor) and value.is_floating_point()


def is_symmetric(tensor):
    return (
        tensor.dim() >= 2
        and tensor.shape[-1] == tensor.shape[-2]
        and bool(torch.equal(tensor, tensor.transpose(-1, -2)))
    )


def mirrored(tensor):
    """Its upper triangle, in both halves."""
    return torch.triu(tensor) + torch.triu(tensor, 1).transpose(-1, -2)


class Signs:
    """Random signs from a generator on the tensor's device."""

    def __init__(self, generator):
        self.generator = generator

    def like(self, x):
        signs = torch.randint(0, 2, x.shape, generator=self.generator, device=x.device, dtype=torch.int8)
        return signs.mul_(2).sub_(1)


class QuickSigns:
    """Random signs from the CPU's own generator, eight from a random byte: a random number for each sign would take
    four times as long."""

    generator = None  # the CPU's own

    @staticmethod
    def like(x):
        count = x.numel()
        octets = torch.randint(0, 256, ((count + 7) // 8, 1), dtype=torch.uint8)
        bits = (octets >> torch.arange(8, dtype=torch.uint8)) & 1
        return bits.flatten()[:count].view(x.shape).to(x.dtype).mul_(2).sub_(1)


class Draw:
    """What a change takes its random numbers from. seed: of the set of inputs; symmetric: whether the tensor is."""

    def __init__(self, signs, symmetric, scaling=None, seed=0):
        self.signs_of, self.symmetric, self.scaling, self.seed = signs, symmetric, scaling or Scaling(), seed

    def signs(self, x):
        """Signs at random: symmetric around zero, and the zeros of a triangular, diagonal or masked operand stay where
        they are. A symmetric matrix stays symmetric."""
        signs = self.signs_of.like(x)
        return mirrored(signs) if self.symmetric else signs


# Each change works in place and returns the tensor: there is seldom room for a second copy of gigabytes, and each pass
# over them takes milliseconds.


def signed(x, draw):
    return x.mul_(draw.signs(x))


def scaled(x, draw):
    return (signed(x, draw) if draw.scaling.signs else x).mul_(draw.scaling.factor_for(draw.seed))


def small(x, draw):
    return signed(x, draw).mul_(SMALL)


def negated(x, _draw):
    return x.neg_()


def offset(x, draw):
    zero = x == 0
    return signed(x, draw).add_(OFFSET).masked_fill_(zero, 0)


def unit(x, draw):
    zero = x == 0
    signs = draw.signs(x)
    return x.mul_(SMALL).add_(1).mul_(signs).masked_fill_(zero, 0)


def spiked(x, signs):
    """Beside a spike of 16 to 20 the exponentials of all other elements are as small as float32 can just add, and a
    right softmax that adds one after the other loses them. Beside one of 88 to 104 they are subnormal numbers, which
    are slow. So spikes are larger than that."""
    return (x * SPIKE + SPIKE_LEAST * torch.where(x < 0, -1, 1)) * signs


def spikes(x, draw):
    """An element that is chosen twice gets the same value twice, whichever comes last."""
    generator, share = draw.signs_of.generator, min(SPIKES_MOST, SPIKES_LEAST / x.numel() + SPIKES_SHARE)
    if x.is_contiguous() and not draw.symmetric:
        flat = x.view(-1)
        count = int(share * x.numel()) + 1
        key = torch.randint(1 << 20, (1,), generator=generator, device=x.device)
        at = torch.randint(x.numel(), (count,), generator=generator, device=x.device)
        signs = 1 - 2 * (((at + key) * MIX >> 16) & 1)
        flat[at] = spiked(flat[at], signs.to(x.dtype))
        return x
    chosen = torch.rand(x.shape, generator=generator, device=x.device) < share
    signs = draw.signs(x)
    if draw.symmetric:
        chosen = mirrored(chosen.to(torch.int8)).bool()
    return torch.where(chosen, spiked(x, signs), x)


class Family(NamedTuple):
    """A row of the table."""

    about: str
    change: Optional[Callable]  # of each floating-point input; None: they stay, or one element is changed
    far: bool = False  # true: far from the problem's own scale, where only float64 says how far to trust the reference


FAMILIES = {
    FAMILY_SHIPPED: Family("what get_inputs draws", None),
    FAMILY_SIGNED: Family("signs at random", signed),
    FAMILY_SCALED: Family("signs at random, times 3 or the problem's own factor (scaling.py)", scaled, far=True),
    FAMILY_SMALL: Family("signs at random, times 0.01", small),
    FAMILY_NEGATED: Family("the negative", negated),
    FAMILY_OFFSET: Family("signs at random, plus 50; zeros stay", offset, far=True),
    FAMILY_UNIT: Family("values next to 1 with signs at random; zeros stay", unit),
    FAMILY_SPIKES: Family("a few elements 128 more than a hundred times their size, of either sign", spikes, far=True),
    FAMILY_PROBE: Family("one element, by so much that the output must change", None),
    FAMILY_TOUCHED: Family("one element, by as much as showed in some place of that input", None, far=True),
}


def change(x, family, signs, in_place=False, scaling=None, seed=0):
    """An input of a family. in_place: whether nobody else has x, so that it may be written to. scaling: of `scaled`."""
    if not is_float(x) or x.numel() == 0:
        return x
    draw = Draw(signs, is_symmetric(x), scaling, seed)
    return FAMILIES[family].change(x if in_place else x.clone(), draw)


# ---- one changed element ----


def value_that_shows(x, at, base, outputs_for):
    """The value that element `at` of x must have to move the reference's outputs, or None where no value does.
    base: the outputs for x; outputs_for(changed x): those for another input in its place."""
    scale = compare.rms_of(x) or 1.0
    place = tuple(unravel(at, x.shape))
    for factor in TOUCH_FACTORS:
        if factor * scale > torch.finfo(x.dtype).max / 100:
            break
        changed = x.clone()
        changed[place] = factor * scale
        moved = compare.moved(base, outputs_for(changed))
        if moved is None:
            return None
        if moved > SHOWS:
            return factor * scale
    return None


def find_touches(values, shows):
    """[(input, value)]: the inputs of which an element may be changed, with a value that shows. shows(index): that
    value, found out for some element of the input, or None."""
    found = []
    for index, x in enumerate(values):
        if len(found) < MOST_TOUCHED and is_float(x) and x.numel():
            value = shows(index)
            if value is not None:
                found.append((index, value))
    return found


def touch(values, touches, generator=None, may_write=lambda x: False):
    """The inputs with one element changed, anywhere. generator: on the CPU, so that nobody waits for a GPU to say the
    place; None: the CPU's own. may_write(x): whether nobody else has x."""
    if not touches:
        return values
    index, value = touches[int(torch.randint(len(touches), (1,), generator=generator))]
    x = values[index]
    at = int(torch.randint(x.numel(), (1,), generator=generator))
    x = x if may_write(x) else x.clone()
    x[tuple(unravel(at, x.shape))] = value
    return [x if i == index else v for i, v in enumerate(values)]
