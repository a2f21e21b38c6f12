import torch
import torch.nn as nn

batch_size = 16
seq_len = 136
hidden_size = 460

class Model(nn.Module):
    def __init__(self, hidden_size):
        super().__init__()
        self.norm = nn.LayerNorm(hidden_size)

    def forward(self, hidden):
        hidden = self.norm(hidden)
        return hidden

def get_inputs():
    return [torch.randn(batch_size, seq_len, hidden_size)]

def get_init_inputs():
    return [hidden_size]
