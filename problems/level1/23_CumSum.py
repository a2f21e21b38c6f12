import torch
import torch.nn as nn

class Model(nn.Module):
    """Applies CumSum."""
    def forward(self, x):
        x = torch.cumsum(x, dim=1)
        return x

batch = 580
n_features = 980

def get_inputs():
    return [torch.rand(batch, n_features)]

def get_init_inputs():
    return []
