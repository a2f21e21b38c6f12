import torch
import torch.nn as nn

class Model(nn.Module):
    def __init__(self, channels, out_channels, kernel_size):
        super().__init__()
        self.layer = nn.Conv2d(channels, out_channels, kernel_size, padding=1)
        self.bn = nn.BatchNorm2d(out_channels, track_running_stats=False)

    def forward(self, hidden):
        hidden = self.layer(hidden)
        hidden = self.bn(hidden)
        hidden = hidden.clamp(min=0)
        return hidden

batch_size = 32
channels = 8
height = 32
width = 32
out_channels = 8
kernel_size = 3

def get_inputs():
    return [torch.randn(batch_size, channels, height, width)]

def get_init_inputs():
    return [channels, out_channels, kernel_size]
