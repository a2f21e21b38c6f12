import torch
import torch.nn as nn
import torch.nn.functional as F

batch_size = 16
seq_length = 52
dim = 52
kv_len = 52
denom = 8.0
kv_len2 = 52

class Model(nn.Module):
    """Model that performs BatchedMatmulTransposed, Divide, Softmax, BatchedMatmul and Residual."""
    def __init__(self, denom):
        super().__init__()
        self.denom = denom

    def forward(self, inp, weight, b):
        z = inp @ weight.transpose(-2, -1)
        z = z / self.denom
        z = F.softmax(z, dim=-1)
        z = torch.bmm(z, b)
        z = torch.add(z, inp)
        return z

def get_inputs():
    return [torch.rand(batch_size, seq_length, dim), torch.rand(batch_size, kv_len, dim), torch.rand(batch_size, kv_len, kv_len2)]

def get_init_inputs():
    return [denom]
