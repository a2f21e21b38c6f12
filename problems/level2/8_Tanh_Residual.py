import torch
import torch.nn as nn

batch_size = 540
width = 1060

class Model(nn.Module):
    def forward(self, x):
        h = x.tanh()
        return torch.add(h, x)

def get_inputs():
    return [torch.rand(batch_size, width)]

def get_init_inputs():
    return []
