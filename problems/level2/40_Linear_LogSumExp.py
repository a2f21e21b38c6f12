import torch
import torch.nn as nn

class Model(nn.Module):
    def __init__(self, hidden_size, out_features):
        super().__init__()
        self.linear = nn.Linear(hidden_size, out_features)

    def forward(self, x):
        x = self.linear(x)
        return x.logsumexp(dim=-1)

batch = 68
hidden_size = 520
out_features = 250

def get_inputs():
    return [torch.randn(batch, hidden_size)]

def get_init_inputs():
    return [hidden_size, out_features]
