import torch
import torch.nn as nn

class Model(nn.Module):
    def forward(self, x):
        x = torch.norm(x, p=1, dim=1)
        return x

batch_size = 1000
features = 1000

def get_inputs():
    return [torch.randn(batch_size, features)]

def get_init_inputs():
    return []
