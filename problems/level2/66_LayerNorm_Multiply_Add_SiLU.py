import torch
import torch.nn as nn

class Model(nn.Module):
    """LayerNorm, Multiply, Add, SiLU."""
    def __init__(self, width):
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.swish = nn.SiLU()

    def forward(self, x, z, y):
        x = self.norm(x)
        x = x * z
        x = y + x
        x = self.swish(x)
        return x

batch_size = 580
width = 580

def get_inputs():
    return [torch.randn(batch_size, width), torch.randn(batch_size, width), torch.randn(batch_size, width)]

def get_init_inputs():
    return [width]
