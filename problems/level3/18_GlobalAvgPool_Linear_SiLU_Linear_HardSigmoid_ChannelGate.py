import torch
import torch.nn as nn
import torch.nn.functional as F

class Model(nn.Module):
    def __init__(self, num_channels, out_dim, out_features):
        super().__init__()
        self.dense = nn.Linear(num_channels, out_dim)
        self.fc = nn.Linear(out_dim, out_features)

    def forward(self, data):
        y = F.adaptive_avg_pool2d(data, 1).flatten(1)
        y = self.dense(y)
        y = F.silu(y)
        y = self.fc(y)
        y = F.hardsigmoid(y)
        return data * y.unsqueeze(-1).unsqueeze(-1)

batch = 16
num_channels = 56
height = 40
width = 40
out_dim = 16
out_features = 56

def get_inputs():
    return [torch.randn(batch, num_channels, height, width)]

def get_init_inputs():
    return [num_channels, out_dim, out_features]
