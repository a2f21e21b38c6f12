import torch
import torch.nn as nn

class Model(nn.Module):
    """Square, Mean."""
    def forward(self, x):
        x = x.pow(2)
        return x.mean(dim=1)

batch = 1960
dim = 1020

def get_inputs():
    return [torch.randn(batch, dim)]

def get_init_inputs():
    return []
