import torch
import torch.nn as nn
import torch.nn.functional as F



class Model(nn.Module):
    def __init__(self, n, m):
        super().__init__()
        self.fc = nn.Linear(n, m)

    def forward(self, x):
        return F.gelu(self.fc(x))


def get_inputs():
    return [torch.rand(64, 256)]


def get_init_inputs():
    return [256, 128]
