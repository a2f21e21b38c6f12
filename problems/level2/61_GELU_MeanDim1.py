import torch
import torch.nn as nn
import torch.nn.functional as F

class Model(nn.Module):
    def __init__(self):
        super().__init__()

    def forward(self, x):
        h = F.gelu(x)
        return h.mean(dim=1)

batch_size = 76
length = 76
hidden_size = 236

def get_inputs():
    return [torch.rand(batch_size, length, hidden_size)]

def get_init_inputs():
    return []
