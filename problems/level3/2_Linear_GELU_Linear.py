import torch
import torch.nn as nn

class Model(nn.Module):
    """Linear -> GELU -> Linear."""
    def __init__(self, width, out_features, out_dim):
        super().__init__()
        self.proj = nn.Linear(width, out_features)
        self.activation = nn.GELU()
        self.linear = nn.Linear(out_features, out_dim)

    def forward(self, data):
        data = self.proj(data)
        data = self.activation(data)
        data = self.linear(data)
        return data

batch_size = 300
width = 300
out_features = 300
out_dim = 300

def get_inputs():
    return [torch.randn(batch_size, width)]

def get_init_inputs():
    return [width, out_features, out_dim]
