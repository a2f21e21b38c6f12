import torch
import torch.nn as nn
import torch.nn.functional as F


class Model(nn.Module):
    def forward(self, a, b):
        return F.mse_loss(a, b) * 1e-12


def get_inputs():
    return [torch.rand(256, 512), torch.rand(256, 512)]


def get_init_inputs():
    return []
