import torch
import torch.nn as nn
import torch.nn.functional as F

class Model(nn.Module):
    """Applies LinearNoBias and GEGLU."""
    def __init__(self, in_features, out_features):
        super().__init__()
        self.proj = nn.Linear(in_features, out_features, bias=False)

    def forward(self, inp):
        inp = self.proj(inp)
        gate, up = inp.chunk(2, dim=-1)
        return F.gelu(gate) * up

batch = 60
in_features = 250
out_features = 460

def get_inputs():
    return [torch.rand(batch, in_features)]

def get_init_inputs():
    return [in_features, out_features]
