"""What the referee does to a GPU beside running references: it looks into the memory of answers, finds out whether the
device rests, and writes over the device's cache."""

import ctypes
import time

import torch

from kernelrl_worker import tensors
from kernelrl_worker.sample import Sample

MOST_OPEN = 64  # blocks of an answer's memory that stay open
LOOK_EVERY = 16  # looks at an answer's memory between two questions of how much memory is free
ROOMY_SHARE = 4  # there is room while more than one part in so many is free
REST_SLACK_S = 300e-6  # a small piece of work on a device that rests takes at most this much more than at best
REST_WAIT_S = 1.0  # so long others may go on working before the device counts as busy
USUAL_L2_BYTES = 64 << 20  # where PyTorch does not say how large the cache is


class Gpu:
    def __init__(self):
        self.cuda = None  # tensors.Cuda, as soon as a lane on a GPU is wanted
        self.tick, self.usual_s = None, 1.0  # a small piece of work, and the seconds that it takes at best
        self.looks, self.roomy = 0, False
        self.scratch = None  # memory larger than the device's cache

    def start(self, device):
        if self.cuda is None:
            torch.cuda.init()
            torch.zeros(1, device=device)
            self.cuda = tensors.Cuda()

    def forget(self):
        """Drops what can be made again. Small tensors would hold on to the large blocks that they were cut from."""
        self.scratch = self.tick = None

    # ---- the device ----

    def rests(self, device):
        """False: the device goes on working for others. It takes turns between processes, and a small piece of work
        waits for a millisecond or two then. One that does not wait is proof of rest. What makes a few of them slow (a
        driver that is busy, a processor that is elsewhere) passes."""
        if self.tick is None:
            self.tick = torch.zeros(1, device=device)
        begun = time.perf_counter()
        while True:
            start = time.perf_counter()
            self.tick.add_(1)
            torch.cuda.synchronize()
            end = time.perf_counter()
            self.usual_s = min(self.usual_s, end - start)
            if end - start < self.usual_s + REST_SLACK_S:
                return True
            if end - begun > REST_WAIT_S:
                return False

    def flush(self, device):
        """Writes over the device's cache, behind everything that the device has been given."""
        if self.scratch is None:
            size = 2 * getattr(torch.cuda.get_device_properties(device), "L2_cache_size", USUAL_L2_BYTES)
            self.scratch = torch.empty(size, dtype=torch.uint8, device=device)
        self.scratch.fill_(7)
        torch.cuda.synchronize()

    # ---- memory of answers ----

    def opened(self, handle, offset, size, device):
        """A piece of an answer's memory as bytes; None when it is not all there."""
        try:
            base = self.cuda.open(handle)
            if offset < 0 or offset + size > self.cuda.extent(base):
                return None
            return tensors.gpu_bytes(base + offset, size, device)
        except (RuntimeError, ValueError, ctypes.ArgumentError):
            return None

    def known(self):
        """The blocks that are open, by their handles."""
        return dict(self.cuda.opened)

    def keep_open(self):
        """Decides what stays open. Opening an answer's memory is work for the driver, which everybody waits for, so a
        block stays open until the answer ends; but only where there is room, because a block that is open here is not
        free there."""
        self.looks += 1
        if self.looks % LOOK_EVERY == 1:
            free, total = torch.cuda.mem_get_info()
            self.roomy = free > total // ROOMY_SHARE
        if not self.roomy or len(self.cuda.opened) > MOST_OPEN:
            self.cuda.close_all()

    def close_all(self):
        if self.cuda:
            self.cuda.close_all()

    def sum(self, handle, size, seed, device):
        """The sum of a block's contents, or of some pieces of a large one; None where it cannot be opened."""
        flat = self.opened(handle, 0, size, device)
        if flat is not None and Sample.fits(flat):
            flat = Sample(seed, size, device).of(flat)
        return None if flat is None else int(flat[: size // 8 * 8].view(torch.int64).sum())
