"""the sum by its formula"""

import torch
import torch.nn as nn


class ModelNew(nn.Module):
    def forward(self, a, b):
        p = torch.softmax(b, 1)
        return (p * (p.log() - torch.log_softmax(a, 1))).sum() / a.shape[0]
