import torch
import torch.nn as nn


class Model(nn.Module):
    def forward(self, x):
        return x / torch.sqrt((x * x).mean(dim=1, keepdim=True) + 1e-6)


def get_inputs():
    return [torch.randn(256, 512)]


def get_init_inputs():
    return []
