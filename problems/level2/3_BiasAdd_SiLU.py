import torch
import torch.nn as nn
import torch.nn.functional as F

class Model(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.bias = nn.Parameter(torch.randn(width))

    def forward(self, x):
        x = torch.add(x, self.bias)
        return F.silu(x)

batch = 980
width = 980

def get_inputs():
    return [torch.rand(batch, width)]

def get_init_inputs():
    return [width]
