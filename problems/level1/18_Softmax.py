import torch
import torch.nn as nn

batch = 1024
features = 1024

class Model(nn.Module):
    """Model that performs Softmax."""
    def forward(self, x):
        x = torch.softmax(x, dim=-1)
        return x

def get_inputs():
    return [torch.rand(batch, features)]

def get_init_inputs():
    return []
