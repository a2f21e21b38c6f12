import torch
import torch.nn as nn
import torch.nn.functional as F

num_rows = 1960
n_features = 1020

class Model(nn.Module):
    """Applies ReLU."""
    def forward(self, x):
        x = F.relu(x)
        return x

def get_inputs():
    return [torch.randn(num_rows, n_features)]

def get_init_inputs():
    return []
