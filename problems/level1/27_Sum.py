import torch
import torch.nn as nn

class Model(nn.Module):
    def forward(self, input):
        input = torch.sum(input, dim=1)
        return input

batch_size = 8000
dim = 1020

def get_inputs():
    return [torch.randn(batch_size, dim)]

def get_init_inputs():
    return []
