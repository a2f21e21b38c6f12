import torch
import torch.nn as nn

class Model(nn.Module):
    """Sigmoid -> Scale -> AddConstant."""
    def __init__(self):
        super().__init__()

    def forward(self, hidden):
        hidden = hidden.sigmoid()
        hidden = torch.mul(hidden, 2.0)
        hidden = hidden + 0.1
        return hidden

batch_size = 460
features = 1140

def get_inputs():
    return [torch.randn(batch_size, features)]

def get_init_inputs():
    return []
