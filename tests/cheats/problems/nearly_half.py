import torch
import torch.nn as nn


class Model(nn.Module):
    def forward(self, x):
        return torch.sigmoid(x.sum(dim=1) * 1e-8)


def get_inputs():
    return [torch.rand(128, 512)]


def get_init_inputs():
    return []
