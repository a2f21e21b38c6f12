import torch
import torch.nn as nn

class Model(nn.Module):
    """Model that performs Softmax and Scale."""
    def forward(self, data):
        data = data.softmax(dim=1)
        data = torch.mul(data, 3.0)
        return data

batch_size = 500
features = 1060

def get_inputs():
    return [torch.rand(batch_size, features)]

def get_init_inputs():
    return []
