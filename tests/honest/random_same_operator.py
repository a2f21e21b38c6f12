"""a random operator, seeded alike on both sides"""

import torch
import torch.nn as nn
import torch.nn.functional as F


class ModelNew(nn.Module):
    def forward(self, x):
        return nn.functional.dropout(x, p=0.5, training=True)
