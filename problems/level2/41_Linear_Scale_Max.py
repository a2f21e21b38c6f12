import torch
import torch.nn as nn

class Model(nn.Module):
    def __init__(self, in_features, hidden_dim, scale):
        super().__init__()
        self.dense = nn.Linear(in_features, hidden_dim)
        self.scale = scale

    def forward(self, inp):
        inp = self.dense(inp)
        inp = torch.mul(inp, self.scale)
        inp = inp.max(dim=1).values
        return inp

batch = 108
in_features = 460
hidden_dim = 260
scale = 2.0

def get_inputs():
    return [torch.rand(batch, in_features)]

def get_init_inputs():
    return [in_features, hidden_dim, scale]
