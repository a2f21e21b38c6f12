import torch
import torch.nn as nn

class Model(nn.Module):
    """Conv1d."""
    def __init__(self, in_channels, out_channels):
        super().__init__()
        self.layer = nn.Conv1d(in_channels, out_channels, kernel_size=5, padding=2)

    def forward(self, inp):
        return self.layer(inp)

batch = 32
in_channels = 8
length = 2000
out_channels = 16

def get_inputs():
    return [torch.rand(batch, in_channels, length)]

def get_init_inputs():
    return [in_channels, out_channels]
