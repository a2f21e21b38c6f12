import torch
import torch.nn as nn

class Model(nn.Module):
    def __init__(self, n_features, hidden_dim, hidden_dim2):
        super().__init__()
        self.norm = nn.LayerNorm(n_features)
        self.proj = nn.Linear(n_features, hidden_dim)
        self.activation = nn.GELU()
        self.fc = nn.Linear(hidden_dim, hidden_dim2)

    def forward(self, x):
        res = self.norm(x)
        res = self.proj(res)
        res = self.activation(res)
        res = self.fc(res)
        res = res + x
        return res

batch = 220
n_features = 220
hidden_dim = 220
hidden_dim2 = 220

def get_inputs():
    return [torch.rand(batch, n_features)]

def get_init_inputs():
    return [n_features, hidden_dim, hidden_dim2]
