import torch
import torch.nn as nn

class Model(nn.Module):
    """RMSNorm, SiLU."""
    def __init__(self, hidden_size):
        super().__init__()
        self.norm_weight = nn.Parameter(torch.ones(hidden_size))
        self.act = nn.SiLU()

    def forward(self, input):
        input = input * torch.rsqrt(input.pow(2).mean(dim=-1, keepdim=True) + 1e-8) * self.norm_weight
        return self.act(input)

batch_size = 16
seq_length = 68
hidden_size = 484

def get_inputs():
    return [torch.rand(batch_size, seq_length, hidden_size)]

def get_init_inputs():
    return [hidden_size]
