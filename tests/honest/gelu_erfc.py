"""by the error function"""

import torch
import torch.nn as nn


class ModelNew(nn.Module):
    def forward(self, x):
        return x * 0.5 * (1 + torch.erf(x * 0.7071067811865476))
