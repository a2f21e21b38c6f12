import torch
import torch.nn as nn

class Model(nn.Module):
    """Model that performs Exp."""
    def forward(self, x):
        x = x.exp()
        return x

batch = 1000
n_features = 1000

def get_inputs():
    return [torch.rand(batch, n_features)]

def get_init_inputs():
    return []
