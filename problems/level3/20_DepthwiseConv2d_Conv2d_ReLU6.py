import torch
import torch.nn as nn
import torch.nn.functional as F

class Model(nn.Module):
    def __init__(self, channels, hidden_channels, kernel_size):
        super().__init__()
        self.conv = nn.Conv2d(channels, channels, 3, padding=1, groups=channels)
        self.conv2d = nn.Conv2d(channels, hidden_channels, kernel_size)

    def forward(self, input):
        input = self.conv(input)
        input = self.conv2d(input)
        input = F.relu6(input)
        return input

batch_size = 16
channels = 16
height = 44
width = 44
hidden_channels = 16
kernel_size = 1

def get_inputs():
    return [torch.randn(batch_size, channels, height, width)]

def get_init_inputs():
    return [channels, hidden_channels, kernel_size]
