import torch
import torch.nn as nn

class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.act = nn.Softplus()

    def forward(self, data):
        data = self.act(data)
        data = torch.mean(data)
        return data

batch = 500
n_features = 1140

def get_inputs():
    return [torch.randn(batch, n_features)]

def get_init_inputs():
    return []
