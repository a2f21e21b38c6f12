import torch
import torch.nn as nn

class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.hardtanh = nn.Hardtanh()

    def forward(self, x):
        return self.hardtanh(x)

batch_size = 1960
dim = 1100

def get_inputs():
    return [torch.rand(batch_size, dim)]

def get_init_inputs():
    return []
