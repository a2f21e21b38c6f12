import torch
import torch.nn as nn

class Model(nn.Module):
    """GELU -> Max."""
    def __init__(self):
        super().__init__()
        self.activation = nn.GELU()

    def forward(self, x):
        x = self.activation(x)
        x = torch.amax(x, dim=-1)
        return x

num_rows = 484
dim = 1140

def get_inputs():
    return [torch.randn(num_rows, dim)]

def get_init_inputs():
    return []
