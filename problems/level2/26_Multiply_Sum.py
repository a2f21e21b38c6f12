import torch
import torch.nn as nn

class Model(nn.Module):
    def forward(self, x, y):
        x = torch.mul(x, y)
        return x.sum(dim=-1)

batch_size = 4000
width = 500

def get_inputs():
    return [torch.rand(batch_size, width), torch.rand(batch_size, width)]

def get_init_inputs():
    return []
