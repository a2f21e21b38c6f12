"""two outputs, the second in memory that is used again"""

import torch
import torch.nn as nn


class ModelNew(nn.Module):
    def __init__(self):
        super().__init__()
        self.kept = None

    def forward(self, x):
        if self.kept is None:
            self.kept = torch.empty(x.shape[0])
        return x.sum(1), torch.amax(x, 1, out=self.kept)
