import torch
import torch.nn as nn
import torch.nn.functional as F

class Model(nn.Module):
    def __init__(self, channels):
        super().__init__()
        self.bn = nn.BatchNorm2d(channels, track_running_stats=False)

    def forward(self, x):
        x = self.bn(x)
        return F.relu(x)

batch_size = 8
channels = 16
height = 44
width = 44

def get_inputs():
    return [torch.randn(batch_size, channels, height, width)]

def get_init_inputs():
    return [channels]
