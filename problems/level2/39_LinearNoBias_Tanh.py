import torch
import torch.nn as nn

class Model(nn.Module):
    def __init__(self, dim, out_features):
        super().__init__()
        self.proj = nn.Linear(dim, out_features, bias=False)

    def forward(self, x):
        x = self.proj(x)
        x = torch.tanh(x)
        return x

batch_size = 76
dim = 580
out_features = 276

def get_inputs():
    return [torch.rand(batch_size, dim)]

def get_init_inputs():
    return [dim, out_features]
