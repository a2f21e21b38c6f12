"""the largest of four views"""

import torch
import torch.nn as nn


class ModelNew(nn.Module):
    def forward(self, x):
        top = torch.maximum(x[:, :, ::2, ::2], x[:, :, ::2, 1::2])
        return torch.maximum(top, torch.maximum(x[:, :, 1::2, ::2], x[:, :, 1::2, 1::2]))
