import torch
import torch.nn as nn


class Model(nn.Module):
    def forward(self, x):
        return torch.relu(x - 0.5)


def get_inputs():
    return [torch.rand(256, 1024)]


def get_init_inputs():
    return []
