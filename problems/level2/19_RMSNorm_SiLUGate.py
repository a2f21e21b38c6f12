import torch
import torch.nn as nn
import torch.nn.functional as F

batch_size = 16
seq_len = 52
embed_dim = 540

class Model(nn.Module):
    def __init__(self, embed_dim):
        super().__init__()
        self.norm_weight = nn.Parameter(torch.ones(embed_dim))

    def forward(self, data, y):
        data = data * torch.rsqrt(data.pow(2).mean(dim=-1, keepdim=True) + 1e-8) * self.norm_weight
        return data * F.silu(y)

def get_inputs():
    return [torch.randn(batch_size, seq_len, embed_dim), torch.randn(batch_size, seq_len, embed_dim)]

def get_init_inputs():
    return [embed_dim]
