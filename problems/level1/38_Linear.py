import torch
import torch.nn as nn

class Model(nn.Module):
    def __init__(self, in_features, hidden_dim):
        super().__init__()
        self.proj = nn.Linear(in_features, hidden_dim)

    def forward(self, x):
        return self.proj(x)

batch_size = 68
in_features = 460
hidden_dim = 260

def get_inputs():
    return [torch.randn(batch_size, in_features)]

def get_init_inputs():
    return [in_features, hidden_dim]
