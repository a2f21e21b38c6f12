import torch
import torch.nn as nn

class Model(nn.Module):
    """Model that performs Conv1d, BiasAdd and Tanh."""
    def __init__(self, in_channels, hidden_channels):
        super().__init__()
        self.layer = nn.Conv1d(in_channels, hidden_channels, 5, padding=2)
        self.b = nn.Parameter(torch.zeros(hidden_channels, 1))

    def forward(self, x):
        x = self.layer(x)
        x = torch.add(x, self.b)
        x = torch.tanh(x)
        return x

batch_size = 32
in_channels = 8
seq_len = 1100
hidden_channels = 16

def get_inputs():
    return [torch.rand(batch_size, in_channels, seq_len)]

def get_init_inputs():
    return [in_channels, hidden_channels]
