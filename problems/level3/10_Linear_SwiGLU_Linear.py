import torch
import torch.nn as nn
import torch.nn.functional as F

class Model(nn.Module):
    def __init__(self, n_features, output_size, output_size2):
        super().__init__()
        self.linear = nn.Linear(n_features, output_size)
        self.fc = nn.Linear(output_size // 2, output_size2)

    def forward(self, x):
        x = self.linear(x)
        gate, up = x.chunk(2, dim=-1)
        x = F.silu(gate) * up
        x = self.fc(x)
        return x

batch_size = 68
n_features = 276
output_size = 540
output_size2 = 276

def get_inputs():
    return [torch.rand(batch_size, n_features)]

def get_init_inputs():
    return [n_features, output_size, output_size2]
