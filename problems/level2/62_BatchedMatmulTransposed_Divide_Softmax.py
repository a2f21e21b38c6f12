import torch
import torch.nn as nn

class Model(nn.Module):
    """Applies BatchedMatmulTransposed, Divide and Softmax."""
    def __init__(self):
        super().__init__()
        self.softmax = nn.Softmax(dim=-1)

    def forward(self, x, y):
        x = x @ y.transpose(-2, -1)
        x = torch.div(x, 8.0)
        return self.softmax(x)

batch_size = 32
length = 56
d_model = 56
out_dim = 56

def get_inputs():
    return [torch.randn(batch_size, length, d_model), torch.randn(batch_size, out_dim, d_model)]

def get_init_inputs():
    return []
