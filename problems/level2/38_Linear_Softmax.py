import torch
import torch.nn as nn

class Model(nn.Module):
    def __init__(self, width, hidden_dim):
        super().__init__()
        self.linear = nn.Linear(width, hidden_dim)

    def forward(self, x):
        y = self.linear(x)
        return torch.softmax(y, dim=-1)

batch_size = 108
width = 236
hidden_dim = 236

def get_inputs():
    return [torch.rand(batch_size, width)]

def get_init_inputs():
    return [width, hidden_dim]
