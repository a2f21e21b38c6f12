import torch
import torch.nn as nn
import torch.nn.functional as F



class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.drop = nn.Dropout(0.0)

    def forward(self, x):
        return self.drop(x) + 1


def get_inputs():
    return [torch.rand(64, 64)]


def get_init_inputs():
    return []
