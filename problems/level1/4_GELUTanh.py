import torch
import torch.nn as nn

class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.act = nn.GELU(approximate='tanh')

    def forward(self, x):
        return self.act(x)

batch = 580
features = 1020

def get_inputs():
    return [torch.rand(batch, features)]

def get_init_inputs():
    return []
