import torch
import torch.nn as nn

class Model(nn.Module):
    """Applies Min."""
    def forward(self, x):
        return x.min(dim=2).values

batch = 32
length = 76
hidden_size = 1100

def get_inputs():
    return [torch.rand(batch, length, hidden_size)]

def get_init_inputs():
    return []
