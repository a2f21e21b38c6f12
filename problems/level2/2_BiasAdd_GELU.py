import torch
import torch.nn as nn

class Model(nn.Module):
    def __init__(self, n_features):
        super().__init__()
        self.b = nn.Parameter(torch.randn(n_features))
        self.activation = nn.GELU()

    def forward(self, x):
        x = x + self.b
        x = self.activation(x)
        return x

batch_size = 1140
n_features = 1140

def get_inputs():
    return [torch.randn(batch_size, n_features)]

def get_init_inputs():
    return [n_features]
