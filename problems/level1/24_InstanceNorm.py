import torch
import torch.nn as nn

class Model(nn.Module):
    """Applies InstanceNorm."""
    def __init__(self, in_channels):
        super().__init__()
        self.instance_norm = nn.InstanceNorm2d(in_channels)

    def forward(self, x):
        return self.instance_norm(x)

batch_size = 8
in_channels = 40
height = 40
width = 40

def get_inputs():
    return [torch.rand(batch_size, in_channels, height, width)]

def get_init_inputs():
    return [in_channels]
