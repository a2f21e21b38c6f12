import torch
import torch.nn as nn
import torch.nn.functional as F

batch = 120
width = 236
output_size = 120
hidden_dim = 60

class Model(nn.Module):
    def __init__(self, width, output_size, hidden_dim):
        super().__init__()
        self.fc = nn.Linear(width, output_size)
        self.linear = nn.Linear(output_size, hidden_dim)

    def forward(self, x):
        x = self.fc(x)
        x = x.tanh()
        x = self.linear(x)
        x = F.log_softmax(x, dim=-1)
        return x

def get_inputs():
    return [torch.rand(batch, width)]

def get_init_inputs():
    return [width, output_size, hidden_dim]
