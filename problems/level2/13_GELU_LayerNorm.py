import torch
import torch.nn as nn
import torch.nn.functional as F

batch = 500
hidden_size = 1100

class Model(nn.Module):
    def __init__(self, hidden_size):
        super().__init__()
        self.norm = nn.LayerNorm(hidden_size)

    def forward(self, x):
        x = F.gelu(x)
        x = self.norm(x)
        return x

def get_inputs():
    return [torch.randn(batch, hidden_size)]

def get_init_inputs():
    return [hidden_size]
