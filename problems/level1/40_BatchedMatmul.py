import torch
import torch.nn as nn

class Model(nn.Module):
    """BatchedMatmul."""
    def forward(self, x, weight):
        x = torch.bmm(x, weight)
        return x

batch_size = 32
seq_length = 68
dim = 68
kv_len = 68

def get_inputs():
    return [torch.rand(batch_size, seq_length, dim), torch.rand(batch_size, dim, kv_len)]

def get_init_inputs():
    return []
