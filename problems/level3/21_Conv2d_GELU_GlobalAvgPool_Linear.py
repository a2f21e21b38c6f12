import torch
import torch.nn as nn
import torch.nn.functional as F

class Model(nn.Module):
    """Conv2d -> GELU -> GlobalAvgPool -> Linear."""
    def __init__(self, in_channels, out_channels, kernel_size, hidden_dim):
        super().__init__()
        self.conv = nn.Conv2d(in_channels, out_channels, kernel_size, padding=1)
        self.dense = nn.Linear(out_channels, hidden_dim)

    def forward(self, x):
        x = self.conv(x)
        x = F.gelu(x)
        x = torch.mean(x, dim=[2, 3])
        return self.dense(x)

batch_size = 32
in_channels = 3
height = 46
width = 46
out_channels = 16
kernel_size = 3
hidden_dim = 32

def get_inputs():
    return [torch.randn(batch_size, in_channels, height, width)]

def get_init_inputs():
    return [in_channels, out_channels, kernel_size, hidden_dim]
