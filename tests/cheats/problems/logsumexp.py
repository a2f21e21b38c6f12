import torch
import torch.nn as nn
import torch.nn.functional as F



class Model(nn.Module):
    def __init__(self, n, m):
        super().__init__()
        self.fc = nn.Linear(n, m)

    def forward(self, x):
        return torch.logsumexp(self.fc(x).mean(dim=0, keepdim=True), dim=1) * 10


def get_inputs():
    return [torch.rand(2048, 64)]


def get_init_inputs():
    return [64, 64]
