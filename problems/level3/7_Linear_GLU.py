import torch
import torch.nn as nn
import torch.nn.functional as F

class Model(nn.Module):
    def __init__(self, hidden_size, out_features):
        super().__init__()
        self.dense = nn.Linear(hidden_size, out_features)

    def forward(self, input):
        input = self.dense(input)
        input = F.glu(input, dim=-1)
        return input

batch_size = 68
hidden_size = 300
out_features = 580

def get_inputs():
    return [torch.randn(batch_size, hidden_size)]

def get_init_inputs():
    return [hidden_size, out_features]
