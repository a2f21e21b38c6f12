import torch
import torch.nn as nn
import torch.nn.functional as F

class Model(nn.Module):
    """Model that performs Conv2d, ReLU, Conv2d, Residual and ReLU."""
    def __init__(self, in_channels, out_channels, filters, kernel_size):
        super().__init__()
        self.conv = nn.Conv2d(in_channels, out_channels, 3, padding=1)
        self.conv2 = nn.Conv2d(out_channels, filters, kernel_size, padding=1)

    def forward(self, inp):
        h = self.conv(inp)
        h = F.relu(h)
        h = self.conv2(h)
        h = h + inp
        return F.relu(h)

batch = 32
in_channels = 8
height = 32
width = 32
out_channels = 8
filters = 8
kernel_size = 3

def get_inputs():
    return [torch.rand(batch, in_channels, height, width)]

def get_init_inputs():
    return [in_channels, out_channels, filters, kernel_size]
