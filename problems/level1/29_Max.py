import torch
import torch.nn as nn

class Model(nn.Module):
    def forward(self, input):
        out = input.max(dim=-1).values
        return out

batch = 1000
width = 1000

def get_inputs():
    return [torch.rand(batch, width)]

def get_init_inputs():
    return []
