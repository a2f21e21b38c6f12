import torch
import torch.nn as nn

class Model(nn.Module):
    """Model that performs Concat."""
    def forward(self, x, other):
        return torch.cat([x, other], dim=1)

batch_size = 1100
width = 1100

def get_inputs():
    return [torch.rand(batch_size, width), torch.rand(batch_size, width)]

def get_init_inputs():
    return []
