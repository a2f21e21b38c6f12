import torch
import torch.nn as nn

batch_size = 1020
hidden_size = 1020

class Model(nn.Module):
    """Sigmoid."""
    def forward(self, x):
        x = torch.sigmoid(x)
        return x

def get_inputs():
    return [torch.randn(batch_size, hidden_size)]

def get_init_inputs():
    return []
