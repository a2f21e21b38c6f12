import torch
import torch.nn as nn

class Model(nn.Module):
    def __init__(self, in_channels, out_channels):
        super().__init__()
        self.layer = nn.Conv2d(in_channels, out_channels, kernel_size=3)

    def forward(self, x):
        x = self.layer(x)
        x = x.sigmoid()
        return x

batch_size = 16
in_channels = 3
height = 50
width = 50
out_channels = 16

def get_inputs():
    return [torch.randn(batch_size, in_channels, height, width)]

def get_init_inputs():
    return [in_channels, out_channels]
