import torch
import torch.nn as nn

batch_size = 300
in_features = 300
hidden_dim = 300
out_features = 300

class Model(nn.Module):
    def __init__(self, in_features, hidden_dim, out_features):
        super().__init__()
        self.linear = nn.Linear(in_features, hidden_dim)
        self.dense = nn.Linear(hidden_dim, out_features)
        self.layer_norm = nn.LayerNorm(out_features)

    def forward(self, inp):
        out = self.linear(inp)
        out = out.relu()
        out = self.dense(out)
        out = torch.add(out, inp)
        out = self.layer_norm(out)
        return out

def get_inputs():
    return [torch.randn(batch_size, in_features)]

def get_init_inputs():
    return [in_features, hidden_dim, out_features]
