import torch
import torch.nn as nn

class Model(nn.Module):
    """Applies Matmul, Scale and BiasAdd."""
    def __init__(self, width2, scale):
        super().__init__()
        self.scale = scale
        self.b = nn.Parameter(torch.randn(width2))

    def forward(self, x, other):
        x = torch.mm(x, other)
        x = x * self.scale
        x = x + self.b
        return x

batch = 220
width = 220
width2 = 220
scale = 0.5

def get_inputs():
    return [torch.randn(batch, width), torch.randn(width, width2)]

def get_init_inputs():
    return [width2, scale]
