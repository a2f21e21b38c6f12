import torch
import torch.nn as nn
import torch.nn.functional as F

class Model(nn.Module):
    def __init__(self, in_channels):
        super().__init__()
        self.leaky_relu = nn.LeakyReLU(0.2)

    def forward(self, data):
        data = F.instance_norm(data)
        return self.leaky_relu(data)

batch_size = 8
in_channels = 16
height = 54
width = 54

def get_inputs():
    return [torch.randn(batch_size, in_channels, height, width)]

def get_init_inputs():
    return [in_channels]
