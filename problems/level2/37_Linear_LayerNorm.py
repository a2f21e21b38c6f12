import torch
import torch.nn as nn

class Model(nn.Module):
    def __init__(self, features, out_dim):
        super().__init__()
        self.linear = nn.Linear(features, out_dim)
        self.norm = nn.LayerNorm(out_dim)

    def forward(self, inp):
        inp = self.linear(inp)
        inp = self.norm(inp)
        return inp

num_rows = 76
features = 460
out_dim = 460

def get_inputs():
    return [torch.rand(num_rows, features)]

def get_init_inputs():
    return [features, out_dim]
