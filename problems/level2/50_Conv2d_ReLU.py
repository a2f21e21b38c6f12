import torch
import torch.nn as nn

class Model(nn.Module):
    """Conv2d, ReLU."""
    def __init__(self, channels, hidden_channels):
        super().__init__()
        self.conv2d = nn.Conv2d(channels, hidden_channels, kernel_size=3, padding=1)

    def forward(self, x):
        x = self.conv2d(x)
        x = torch.relu(x)
        return x

batch_size = 16
channels = 3
height = 46
width = 46
hidden_channels = 16

def get_inputs():
    return [torch.rand(batch_size, channels, height, width)]

def get_init_inputs():
    return [channels, hidden_channels]
