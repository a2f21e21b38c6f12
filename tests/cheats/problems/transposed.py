import torch
import torch.nn as nn
import torch.nn.functional as F



class Model(nn.Module):
    def forward(self, x):
        return x * 3 + 1


def get_inputs():
    return [torch.rand(128, 64).t()]


def get_init_inputs():
    return []
