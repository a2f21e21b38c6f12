"""Asks for many objects at once and reads none of the replies: who sends them waits for room."""

import gc
import time

import torch

from kernelrl_worker.channel import Channel

channel = next(o for o in gc.get_objects() if isinstance(o, Channel))
wrong = "#error " + "\x01" * 3000 + "\n"
for _ in range(31):
    channel.send({"op": "build", "cpp": wrong})
while True:
    time.sleep(1)


class ModelNew(torch.nn.Module):
    def forward(self, x):
        return x + 1
