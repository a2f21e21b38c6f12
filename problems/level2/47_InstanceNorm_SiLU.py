import torch
import torch.nn as nn
import torch.nn.functional as F

class Model(nn.Module):
    """InstanceNorm, SiLU."""
    def __init__(self, channels):
        super().__init__()
        self.instance_norm = nn.InstanceNorm2d(channels)

    def forward(self, x):
        x = self.instance_norm(x)
        return F.silu(x)

batch_size = 8
channels = 16
height = 46
width = 46

def get_inputs():
    return [torch.rand(batch_size, channels, height, width)]

def get_init_inputs():
    return [channels]
