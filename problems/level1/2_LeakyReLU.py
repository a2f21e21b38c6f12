import torch
import torch.nn as nn

num_rows = 1060
dim = 2000

class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.act = nn.LeakyReLU(negative_slope=0.1)

    def forward(self, hidden):
        res = self.act(hidden)
        return res

def get_inputs():
    return [torch.randn(num_rows, dim)]

def get_init_inputs():
    return []
