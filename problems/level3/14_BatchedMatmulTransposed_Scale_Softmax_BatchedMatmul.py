import torch
import torch.nn as nn

class Model(nn.Module):
    """Model that performs BatchedMatmulTransposed, Scale, Softmax and BatchedMatmul."""
    def forward(self, x, y, y2):
        x = x @ y.transpose(-2, -1)
        x = torch.mul(x, 0.125)
        x = x.softmax(dim=-1)
        x = x @ y2
        return x

batch = 16
length = 52
hidden_size = 52
out_dim = 52
cols = 52

def get_inputs():
    return [torch.rand(batch, length, hidden_size), torch.rand(batch, out_dim, hidden_size), torch.rand(batch, out_dim, cols)]

def get_init_inputs():
    return []
