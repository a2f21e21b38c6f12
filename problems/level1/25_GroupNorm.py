import torch
import torch.nn as nn

batch_size = 8
in_channels = 40
height = 44
width = 44

class Model(nn.Module):
    def __init__(self, in_channels):
        super().__init__()
        self.norm = nn.GroupNorm(8, in_channels)

    def forward(self, x):
        return self.norm(x)

def get_inputs():
    return [torch.rand(batch_size, in_channels, height, width)]

def get_init_inputs():
    return [in_channels]
