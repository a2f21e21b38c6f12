import torch
import torch.nn as nn
import torch.nn.functional as F

class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.pool = nn.MaxPool2d(2)

    def forward(self, hidden):
        hidden = F.gelu(hidden)
        hidden = self.pool(hidden)
        return hidden

batch_size = 16
in_channels = 8
height = 44
width = 44

def get_inputs():
    return [torch.randn(batch_size, in_channels, height, width)]

def get_init_inputs():
    return []
