import torch
import torch.nn as nn

class Model(nn.Module):
    """Model that performs BatchedMatmul and LeakyReLU."""
    def __init__(self):
        super().__init__()
        self.leaky_relu = nn.LeakyReLU(0.01)

    def forward(self, inp, weight):
        inp = inp @ weight
        inp = self.leaky_relu(inp)
        return inp

batch = 32
length = 60
dim = 60
kv_len = 60

def get_inputs():
    return [torch.rand(batch, length, dim), torch.rand(batch, dim, kv_len)]

def get_init_inputs():
    return []
