import torch
import torch.nn as nn

class Model(nn.Module):
    def __init__(self):
        super().__init__()

    def forward(self, x):
        x = x.pow(2)
        return x

num_rows = 4140
dim = 1100

def get_inputs():
    return [torch.rand(num_rows, dim)]

def get_init_inputs():
    return []
