import torch
import torch.nn as nn

class Model(nn.Module):
    def __init__(self, width, out_dim, out_features):
        super().__init__()
        self.proj = nn.Linear(width, out_dim)
        self.relu = nn.ReLU()
        self.linear = nn.Linear(out_dim, out_features)

    def forward(self, x):
        x = self.proj(x)
        x = self.relu(x)
        return self.linear(x)

batch = 220
width = 220
out_dim = 220
out_features = 144

def get_inputs():
    return [torch.randn(batch, width)]

def get_init_inputs():
    return [width, out_dim, out_features]
