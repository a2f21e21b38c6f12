import torch
import torch.nn as nn
import torch.nn.functional as F



class Model(nn.Module):
    def forward(self, a, b):
        return torch.matmul(a, b)


def get_inputs():
    return [torch.rand(128, 256), torch.rand(256, 128)]


def get_init_inputs():
    return []
