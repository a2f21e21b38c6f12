import torch
import torch.nn as nn
import torch.nn.functional as F

class Model(nn.Module):
    """Applies LayerNorm and GELU."""
    def __init__(self, in_features):
        super().__init__()
        self.layer_norm = nn.LayerNorm(in_features)

    def forward(self, input):
        input = self.layer_norm(input)
        return F.gelu(input)

num_rows = 484
in_features = 1060

def get_inputs():
    return [torch.randn(num_rows, in_features)]

def get_init_inputs():
    return [in_features]
