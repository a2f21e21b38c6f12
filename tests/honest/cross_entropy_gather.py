"""integer labels"""

import torch
import torch.nn as nn
import torch.nn.functional as F


class ModelNew(nn.Module):
    def forward(self, x, labels):
        return (torch.logsumexp(x, 1) - x.gather(1, labels[:, None])[:, 0]).mean()
