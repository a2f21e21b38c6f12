"""no Other"""

import torch
import torch.nn as nn
import torch.nn.functional as F


class Other(nn.Module):
    def forward(self, x):
        return x
