import torch
import torch.nn as nn
import torch.nn.functional as F

class Model(nn.Module):
    def __init__(self):
        super().__init__()

    def forward(self, inp):
        inp = F.softplus(inp)
        return inp

batch = 520
n_features = 1020

def get_inputs():
    return [torch.rand(batch, n_features)]

def get_init_inputs():
    return []
