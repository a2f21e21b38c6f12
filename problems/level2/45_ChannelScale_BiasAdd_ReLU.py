import torch
import torch.nn as nn
import torch.nn.functional as F

class Model(nn.Module):
    def __init__(self, num_channels):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(num_channels, 1, 1))
        self.shift = nn.Parameter(torch.randn(num_channels, 1, 1))

    def forward(self, x):
        x = x * self.weight
        x = x + self.shift
        x = F.relu(x)
        return x

batch_size = 8
num_channels = 40
height = 50
width = 50

def get_inputs():
    return [torch.rand(batch_size, num_channels, height, width)]

def get_init_inputs():
    return [num_channels]
