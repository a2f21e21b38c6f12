import torch
import torch.nn as nn
import torch.nn.functional as F

class Model(nn.Module):
    def __init__(self, hidden_size, hidden_dim):
        super().__init__()
        self.fc = nn.Linear(hidden_size, hidden_dim)

    def forward(self, x):
        x = self.fc(x)
        gate, up = x.chunk(2, dim=-1)
        return F.silu(gate) * up

batch = 52
hidden_size = 300
hidden_dim = 500

def get_inputs():
    return [torch.rand(batch, hidden_size)]

def get_init_inputs():
    return [hidden_size, hidden_dim]
