import torch
import torch.nn as nn

class Model(nn.Module):
    def __init__(self):
        super().__init__()

    def forward(self, input, z):
        input = torch.mm(input, z)
        return torch.relu(input)

batch_size = 220
hidden_size = 220
out_dim = 220

def get_inputs():
    return [torch.rand(batch_size, hidden_size), torch.rand(hidden_size, out_dim)]

def get_init_inputs():
    return []
