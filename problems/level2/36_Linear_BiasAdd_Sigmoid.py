import torch
import torch.nn as nn

class Model(nn.Module):
    """Linear, BiasAdd, Sigmoid."""
    def __init__(self, width, out_dim):
        super().__init__()
        self.proj = nn.Linear(width, out_dim)
        self.b = nn.Parameter(torch.randn(out_dim))
        self.gate = nn.Sigmoid()

    def forward(self, x):
        x = self.proj(x)
        x = torch.add(x, self.b)
        x = self.gate(x)
        return x

batch_size = 68
width = 540
out_dim = 300

def get_inputs():
    return [torch.randn(batch_size, width)]

def get_init_inputs():
    return [width, out_dim]
