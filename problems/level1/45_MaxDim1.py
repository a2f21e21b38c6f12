import torch
import torch.nn as nn

batch_size = 32
seq_len = 60
hidden_size = 250

class Model(nn.Module):
    """MaxDim1."""
    def forward(self, data):
        return data.max(dim=1).values

def get_inputs():
    return [torch.randn(batch_size, seq_len, hidden_size)]

def get_init_inputs():
    return []
