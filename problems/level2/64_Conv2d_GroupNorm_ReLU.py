import torch
import torch.nn as nn
import torch.nn.functional as F

class Model(nn.Module):
    """Model that performs Conv2d, GroupNorm and ReLU."""
    def __init__(self, channels, out_channels, kernel_size):
        super().__init__()
        self.conv = nn.Conv2d(channels, out_channels, kernel_size, padding=1)
        self.gn = nn.GroupNorm(4, out_channels)

    def forward(self, x):
        x = self.conv(x)
        x = self.gn(x)
        return F.relu(x)

batch_size = 16
channels = 8
height = 40
width = 40
out_channels = 16
kernel_size = 3

def get_inputs():
    return [torch.rand(batch_size, channels, height, width)]

def get_init_inputs():
    return [channels, out_channels, kernel_size]
