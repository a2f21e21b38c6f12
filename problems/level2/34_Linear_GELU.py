import torch
import torch.nn as nn

class Model(nn.Module):
    def __init__(self, hidden_size, hidden_dim):
        super().__init__()
        self.proj = nn.Linear(hidden_size, hidden_dim)
        self.gelu = nn.GELU()

    def forward(self, x):
        x = self.proj(x)
        x = self.gelu(x)
        return x

batch = 76
hidden_size = 500
hidden_dim = 250

def get_inputs():
    return [torch.rand(batch, hidden_size)]

def get_init_inputs():
    return [hidden_size, hidden_dim]
