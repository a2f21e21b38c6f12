import torch
import torch.nn as nn
import torch.nn.functional as F


class Model(nn.Module):
    def forward(self, x):
        return F.group_norm(x, 8)


def get_inputs():
    return [torch.randn(4, 32, 16, 16)]


def get_init_inputs():
    return []
