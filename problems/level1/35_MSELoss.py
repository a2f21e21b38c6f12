import torch
import torch.nn as nn
import torch.nn.functional as F

class Model(nn.Module):
    def __init__(self):
        super().__init__()

    def forward(self, x, target):
        x = F.mse_loss(x, target)
        return x

num_rows = 1140
features = 1140

def get_inputs():
    return [torch.rand(num_rows, features), torch.rand(num_rows, features)]

def get_init_inputs():
    return []
