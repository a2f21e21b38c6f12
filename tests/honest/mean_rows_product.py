"""means as a product"""

import torch
import torch.nn as nn


class ModelNew(nn.Module):
    def forward(self, x):
        return x @ torch.full((x.shape[1],), 1 / x.shape[1])
