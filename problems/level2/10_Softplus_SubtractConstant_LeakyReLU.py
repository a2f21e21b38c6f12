import torch
import torch.nn as nn
import torch.nn.functional as F

class Model(nn.Module):
    def __init__(self, subtract_value):
        super().__init__()
        self.softplus = nn.Softplus()
        self.subtract_value = subtract_value

    def forward(self, x):
        x = self.softplus(x)
        x = x - self.subtract_value
        return F.leaky_relu(x, 0.1)

batch_size = 540
n_features = 1020
subtract_value = 0.2

def get_inputs():
    return [torch.randn(batch_size, n_features)]

def get_init_inputs():
    return [subtract_value]
