import torch
import torch.nn as nn
import torch.nn.functional as F



class Model(nn.Module):
    def __init__(self, n):
        super().__init__()
        self.bn = nn.BatchNorm2d(n)

    def forward(self, x):
        return self.bn(x)


def get_inputs():
    return [torch.rand(8, 4, 16, 16)]


def get_init_inputs():
    return [4]
