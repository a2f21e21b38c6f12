"""the sum by its formula"""

import torch
import torch.nn as nn


class ModelNew(nn.Module):
    def forward(self, a, b):
        q = torch.log_softmax(b, 1)
        return (q.exp() * (q - torch.log_softmax(a, 1))).sum() / a.shape[0]
