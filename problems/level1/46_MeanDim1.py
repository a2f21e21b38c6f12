import torch
import torch.nn as nn

class Model(nn.Module):
    """Model that performs MeanDim1."""
    def __init__(self):
        super().__init__()

    def forward(self, x):
        x = x.mean(dim=1)
        return x

batch_size = 76
length = 108
embed_dim = 260

def get_inputs():
    return [torch.randn(batch_size, length, embed_dim)]

def get_init_inputs():
    return []
