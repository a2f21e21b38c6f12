import torch
import torch.nn as nn
import torch.nn.functional as F

batch = 76
dim = 220
output_size = 540
out_features = 220

class Model(nn.Module):
    """LinearNoBias, GEGLU, LinearNoBias."""
    def __init__(self, dim, output_size, out_features):
        super().__init__()
        self.proj = nn.Linear(dim, output_size, bias=False)
        self.dense = nn.Linear(output_size // 2, out_features, bias=False)

    def forward(self, x):
        x = self.proj(x)
        gate, up = x.chunk(2, dim=1)
        x = up * F.gelu(gate)
        return self.dense(x)

def get_inputs():
    return [torch.rand(batch, dim)]

def get_init_inputs():
    return [dim, output_size, out_features]
