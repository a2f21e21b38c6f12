import torch
import torch.nn as nn
import torch.nn.functional as F



class Model(nn.Module):
    def __init__(self, n, m):
        super().__init__()
        self.conv = nn.Conv2d(n, m, 3)
        self.bias = nn.Parameter(torch.randn(m, 1, 1))

    def forward(self, x):
        return torch.relu(self.conv(x)) * 2.0 + self.bias


def get_inputs():
    return [torch.rand(4, 3, 32, 32)]


def get_init_inputs():
    return [3, 8]
