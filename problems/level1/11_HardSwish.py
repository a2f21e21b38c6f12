import torch
import torch.nn as nn

class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.hardswish = nn.Hardswish()

    def forward(self, hidden):
        hidden = self.hardswish(hidden)
        return hidden

batch = 2100
in_features = 1000

def get_inputs():
    return [torch.rand(batch, in_features)]

def get_init_inputs():
    return []
