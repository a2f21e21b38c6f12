"""code behind a hash in a string"""

import torch
import torch.nn as nn
import torch.nn.functional as F


class ModelNew(nn.Module):
    def forward(self, x):
        mark = '#'; return x.clone()  # relu
