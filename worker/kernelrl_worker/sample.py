"""Which parts of large tensors are looked at around timed calls, and comparisons of bytes.

Around timed calls there is no time to look at gigabytes, so of a large tensor some pieces are taken. Trials look at
everything.
"""

import torch

# A tensor is large above SAMPLED_BYTES. One piece in SAMPLED_SHARE is taken, PIECE_BYTES long.
SAMPLED_BYTES, SAMPLED_SHARE, PIECE_BYTES = 64 << 20, 8, 1 << 16


class Sample:
    """Pieces of a large tensor: some at random, and the last one. A secret seed decides which ones after an answer's
    call, so an answer that leaves out a part of the work that is worth leaving out is found out in some of them."""

    def __init__(self, seed, size, device):
        pieces = size // PIECE_BYTES
        generator = torch.Generator().manual_seed(seed)
        self.pieces = torch.randint(pieces, (pieces // SAMPLED_SHARE,), generator=generator).to(device)

    @staticmethod
    def fits(flat):
        """Whether the bytes of this flat tensor are taken in pieces."""
        size = flat.numel() * flat.element_size()
        return size > SAMPLED_BYTES and size % 8 == 0 and flat.data_ptr() % 8 == 0

    def of(self, flat):
        """The elements of the pieces, one piece behind the other. The places are the same for every type of element."""
        words, each = flat.view(torch.int64), PIECE_BYTES // 8
        whole = words[: words.numel() // each * each].view(-1, each)
        return torch.cat([whole.index_select(0, self.pieces).view(-1), words[-each:]]).view(flat.dtype)

    def place(self, index, flat):
        """Where element `index` of of(flat) is in flat."""
        each = PIECE_BYTES // flat.element_size()
        piece, rest = divmod(index, each)
        if piece == self.pieces.numel():
            return flat.numel() - each + rest
        return int(self.pieces[piece]) * each + rest

    def places(self, start, stop, flat):
        """Where elements start to stop of of(flat) are in flat."""
        each = PIECE_BYTES // flat.element_size()
        at = torch.arange(start, stop, device=flat.device)
        piece = torch.div(at, each, rounding_mode="floor")
        inside = piece < self.pieces.numel()
        first = self.pieces[piece.clamp(max=self.pieces.numel() - 1)] * each
        return torch.where(inside, first, torch.full_like(first, flat.numel() - each)) + at % each


class Pieces:
    """The bytes that a sample has of an output. Nobody has looked at the rest."""

    def __init__(self, sample, content):
        self.sample, self.content = sample, content


class SampledScales:
    """Scales (compare.py) for the elements of a sample: `places(start, stop)` says where they are in the output."""

    def __init__(self, scales, places):
        self.scales, self.places = scales, places
        self.rows = scales.rows

    def over(self, start, stop):
        if self.rows.numel() == 1:
            return self.rows
        return self.rows[torch.div(self.places(start, stop), self.scales.length, rounding_mode="floor")]


def unravel(index, shape):
    """The place of element `index` of a flat tensor in one of that shape, as a list."""
    place = []
    for size in reversed(shape):
        place.insert(0, index % size if size else 0)
        index = index // size if size else 0
    return place


def same_bits(a, b):
    """Whether the bytes are equal: a NaN is equal to itself."""
    if a.shape != b.shape or a.dtype != b.dtype:
        return False
    if a.is_floating_point():
        kind = {2: torch.int16, 4: torch.int32, 8: torch.int64}[a.element_size()]
        return bool(torch.equal(a.contiguous().view(kind), b.contiguous().view(kind)))
    return bool(torch.equal(a, b))


def same_inputs(a, b, seed):
    """Whether two inputs have the same bytes. seed: of the sample that is looked at of large ones; 0: of all bytes."""
    if seed and a.is_contiguous() and b.is_contiguous() and a.shape == b.shape and a.dtype == b.dtype:
        a, b = a.view(-1), b.view(-1)
        if Sample.fits(a) and Sample.fits(b):
            sample = Sample(seed, a.numel() * a.element_size(), a.device)
            a, b = sample.of(a), sample.of(b)
    return same_bits(a, b)
