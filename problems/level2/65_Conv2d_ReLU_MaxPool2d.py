import torch
import torch.nn as nn
import torch.nn.functional as F

class Model(nn.Module):
    def __init__(self, channels, hidden_channels):
        super().__init__()
        self.layer = nn.Conv2d(channels, hidden_channels, kernel_size=3, padding=1)

    def forward(self, x):
        x = self.layer(x)
        x = x.relu()
        return F.max_pool2d(x, 2)

batch = 16
channels = 3
height = 44
width = 44
hidden_channels = 16

def get_inputs():
    return [torch.randn(batch, channels, height, width)]

def get_init_inputs():
    return [channels, hidden_channels]
