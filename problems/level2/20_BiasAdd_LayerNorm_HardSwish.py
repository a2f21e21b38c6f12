import torch
import torch.nn as nn
import torch.nn.functional as F

class Model(nn.Module):
    def __init__(self, hidden_size):
        super().__init__()
        self.shift = nn.Parameter(torch.randn(hidden_size))
        self.norm = nn.LayerNorm(hidden_size)

    def forward(self, hidden):
        hidden = torch.add(hidden, self.shift)
        hidden = self.norm(hidden)
        return F.hardswish(hidden)

num_rows = 460
hidden_size = 1020

def get_inputs():
    return [torch.rand(num_rows, hidden_size)]

def get_init_inputs():
    return [hidden_size]
