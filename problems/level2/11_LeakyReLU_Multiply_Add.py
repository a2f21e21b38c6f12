import torch
import torch.nn as nn
import torch.nn.functional as F

class Model(nn.Module):
    """LeakyReLU, Multiply, Add."""
    def forward(self, x, z, z2):
        x = F.leaky_relu(x, 0.2)
        x = torch.mul(x, z)
        x = torch.add(x, z2)
        return x

batch_size = 1140
n_features = 1140

def get_inputs():
    return [torch.randn(batch_size, n_features), torch.randn(batch_size, n_features), torch.randn(batch_size, n_features)]

def get_init_inputs():
    return []
