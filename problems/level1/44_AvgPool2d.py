import torch
import torch.nn as nn

class Model(nn.Module):
    """Model that performs AvgPool2d."""
    def __init__(self):
        super().__init__()
        self.pool = nn.AvgPool2d(2)

    def forward(self, x):
        x = self.pool(x)
        return x

batch_size = 8
channels = 40
height = 60
width = 60

def get_inputs():
    return [torch.rand(batch_size, channels, height, width)]

def get_init_inputs():
    return []
