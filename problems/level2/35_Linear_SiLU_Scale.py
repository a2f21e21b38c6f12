import torch
import torch.nn as nn

class Model(nn.Module):
    """Linear, SiLU, Scale."""
    def __init__(self, n_features, hidden_dim):
        super().__init__()
        self.linear = nn.Linear(n_features, hidden_dim)

    def forward(self, input):
        input = self.linear(input)
        input = input * torch.sigmoid(input)
        return 0.5 * input

batch = 108
n_features = 276
hidden_dim = 276

def get_inputs():
    return [torch.rand(batch, n_features)]

def get_init_inputs():
    return [n_features, hidden_dim]
