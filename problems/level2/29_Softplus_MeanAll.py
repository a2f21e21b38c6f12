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

batch = 512
n_features = 1024

def get_inputs():
    return [torch.randn(batch, n_features)]

def get_init_inputs():
    return []
