import torch
import torch.nn as nn


class Model(nn.Module):
    def forward(self, x):
        return torch.exp(-100 * x * x)


def get_inputs():
    return [torch.rand(256, 512) * 1.2]


def get_init_inputs():
    return []
