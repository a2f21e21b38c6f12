import torch
import torch.nn as nn

class Model(nn.Module):
    """Applies BatchedMatmulTransposed, Scale, Add, Softmax and BatchedMatmul."""
    def __init__(self, scaling_factor):
        super().__init__()
        self.scaling_factor = scaling_factor

    def forward(self, data, weight, other, weight2):
        data = data @ weight.transpose(-2, -1)
        data = self.scaling_factor * data
        data = torch.add(data, other)
        data = data.softmax(dim=2)
        data = torch.matmul(data, weight2)
        return data

batch_size = 16
seq_len = 56
d_model = 56
out_dim = 56
scaling_factor = 0.125
width2 = 56

def get_inputs():
    return [torch.randn(batch_size, seq_len, d_model), torch.randn(batch_size, out_dim, d_model), torch.randn(batch_size, seq_len, out_dim), torch.randn(batch_size, out_dim, width2)]

def get_init_inputs():
    return [scaling_factor]
