import torch
import torch.nn as nn

class Model(nn.Module):
    def __init__(self, dim, output_size, out_features):
        super().__init__()
        self.fc = nn.Linear(dim, output_size)
        self.fc2 = nn.Linear(output_size, out_features)

    def forward(self, inp):
        h = self.fc(inp)
        h = h * torch.sigmoid(h)
        h = self.fc2(h)
        return inp + h

batch_size = 76
dim = 276
output_size = 276
out_features = 276

def get_inputs():
    return [torch.rand(batch_size, dim)]

def get_init_inputs():
    return [dim, output_size, out_features]
