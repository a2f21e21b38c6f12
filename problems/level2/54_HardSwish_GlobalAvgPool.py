import torch
import torch.nn as nn

batch_size = 16
in_channels = 40
height = 60
width = 60

class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.hardswish = nn.Hardswish()

    def forward(self, x):
        x = self.hardswish(x)
        x = x.mean(dim=(2, 3))
        return x

def get_inputs():
    return [torch.randn(batch_size, in_channels, height, width)]

def get_init_inputs():
    return []
