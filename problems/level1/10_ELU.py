import torch
import torch.nn as nn
import torch.nn.functional as F

batch = 2100
width = 1100
alpha = 0.5

class Model(nn.Module):
    def __init__(self, alpha):
        super().__init__()
        self.alpha = alpha

    def forward(self, x):
        return F.elu(x, alpha=self.alpha)

def get_inputs():
    return [torch.randn(batch, width)]

def get_init_inputs():
    return [alpha]
