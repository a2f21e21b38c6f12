import torch
import torch.nn as nn
import torch.nn.functional as F

class Model(nn.Module):
    """Model that performs Conv1d and GELU."""
    def __init__(self, channels, hidden_channels):
        super().__init__()
        self.layer = nn.Conv1d(channels, hidden_channels, 3, padding=1)

    def forward(self, x):
        x = self.layer(x)
        x = F.gelu(x)
        return x

batch_size = 32
channels = 8
seq_len = 2100
hidden_channels = 16

def get_inputs():
    return [torch.rand(batch_size, channels, seq_len)]

def get_init_inputs():
    return [channels, hidden_channels]
