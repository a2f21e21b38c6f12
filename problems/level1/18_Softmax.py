import torch
import torch.nn as nn

batch = 1060
features = 1060

class Model(nn.Module):
    """Model that performs Softmax."""
    def forward(self, x):
        x = torch.softmax(x, dim=-1)
        return x

def get_inputs():
    return [torch.rand(batch, features)]

def get_init_inputs():
    return []
