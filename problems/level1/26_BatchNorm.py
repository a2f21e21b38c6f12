import torch
import torch.nn as nn

class Model(nn.Module):
    def __init__(self, num_channels):
        super().__init__()
        self.batch_norm = nn.BatchNorm2d(num_channels, track_running_stats=False)

    def forward(self, data):
        return self.batch_norm(data)

batch_size = 16
num_channels = 16
height = 50
width = 50

def get_inputs():
    return [torch.randn(batch_size, num_channels, height, width)]

def get_init_inputs():
    return [num_channels]
