import torch
import torch.nn as nn
import torch.nn.functional as F

batch_size = 1140
dim = 1140

class Model(nn.Module):
    def __init__(self, dim):
        super().__init__()
        self.gain = nn.Parameter(torch.ones(dim))
        self.b = nn.Parameter(torch.zeros(dim))

    def forward(self, input):
        input = torch.mul(input, self.gain)
        input = torch.add(input, self.b)
        return F.relu6(input)

def get_inputs():
    return [torch.randn(batch_size, dim)]

def get_init_inputs():
    return [dim]
