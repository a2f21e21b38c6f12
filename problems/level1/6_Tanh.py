import torch
import torch.nn as nn

class Model(nn.Module):
    """Tanh."""
    def forward(self, x):
        x = torch.tanh(x)
        return x

batch_size = 580
dim = 1100

def get_inputs():
    return [torch.randn(batch_size, dim)]

def get_init_inputs():
    return []
