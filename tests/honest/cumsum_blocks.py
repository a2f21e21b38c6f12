"""a scan by blocks"""

import torch
import torch.nn as nn


class ModelNew(nn.Module):
    def forward(self, x):
        y = x.view(x.shape[0], -1, 64).cumsum(2)
        ends = y[:, :, -1].cumsum(1) - y[:, :, -1]
        return (y + ends.unsqueeze(2)).view(x.shape)
