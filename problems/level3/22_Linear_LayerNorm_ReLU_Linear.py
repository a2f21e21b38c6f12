import torch
import torch.nn as nn

class Model(nn.Module):
    """Applies Linear, LayerNorm, ReLU and Linear."""
    def __init__(self, hidden_size, out_dim, hidden_dim):
        super().__init__()
        self.dense = nn.Linear(hidden_size, out_dim)
        self.ln = nn.LayerNorm(out_dim)
        self.activation = nn.ReLU()
        self.proj = nn.Linear(out_dim, hidden_dim)

    def forward(self, x):
        z = self.dense(x)
        z = self.ln(z)
        z = self.activation(z)
        z = self.proj(z)
        return z

batch = 260
hidden_size = 260
out_dim = 260
hidden_dim = 68

def get_inputs():
    return [torch.randn(batch, hidden_size)]

def get_init_inputs():
    return [hidden_size, out_dim, hidden_dim]
