"""as much memory as it can"""

import torch
import torch.nn as nn
import torch.nn.functional as F


class ModelNew(nn.Module):
    def forward(self, x):
        kept = []
        while True:
            kept.append(torch.ones(64 << 20))
