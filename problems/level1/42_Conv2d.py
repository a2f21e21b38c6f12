import torch
import torch.nn as nn

class Model(nn.Module):
    def __init__(self, num_channels, hidden_channels):
        super().__init__()
        self.conv = nn.Conv2d(num_channels, hidden_channels, kernel_size=3, padding=1)

    def forward(self, inp):
        res = self.conv(inp)
        return res

batch_size = 32
num_channels = 3
height = 60
width = 60
hidden_channels = 8

def get_inputs():
    return [torch.randn(batch_size, num_channels, height, width)]

def get_init_inputs():
    return [num_channels, hidden_channels]
