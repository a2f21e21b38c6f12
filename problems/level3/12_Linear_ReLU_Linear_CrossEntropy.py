import torch
import torch.nn as nn
import torch.nn.functional as F

class Model(nn.Module):
    """Linear, ReLU, Linear, CrossEntropy."""
    def __init__(self, width, out_dim, out_dim2):
        super().__init__()
        self.dense = nn.Linear(width, out_dim)
        self.relu = nn.ReLU()
        self.dense2 = nn.Linear(out_dim, out_dim2)

    def forward(self, x, labels):
        x = self.dense(x)
        x = self.relu(x)
        x = self.dense2(x)
        x = F.cross_entropy(x, labels)
        return x

num_rows = 116
width = 500
out_dim = 236
out_dim2 = 56

def get_inputs():
    return [torch.randn(num_rows, width), torch.randint(0, out_dim2, (num_rows,))]

def get_init_inputs():
    return [width, out_dim, out_dim2]
