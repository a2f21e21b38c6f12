import torch
import torch.nn as nn
import torch.nn.functional as F


class Model(nn.Module):
    def forward(self, x):
        return F.dropout(x * 1e-9, 0.5)


def get_inputs():
    return [torch.rand(64, 64)]


def get_init_inputs():
    return []
