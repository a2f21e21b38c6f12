import torch
import torch.nn as nn
import torch.nn.functional as F

class Model(nn.Module):
    """Model that performs GroupNorm and SiLU."""
    def __init__(self, in_channels, groups):
        super().__init__()
        self.norm = nn.GroupNorm(groups, in_channels)

    def forward(self, data):
        data = self.norm(data)
        return F.silu(data)

batch_size = 8
in_channels = 40
height = 40
width = 40
groups = 4

def get_inputs():
    return [torch.randn(batch_size, in_channels, height, width)]

def get_init_inputs():
    return [in_channels, groups]
