import torch
import torch.nn as nn

batch_size = 60
features = 500
out_features = 236

class Model(nn.Module):
    """Model that performs Linear and ReLU."""
    def __init__(self, features, out_features):
        super().__init__()
        self.dense = nn.Linear(features, out_features)
        self.activation = nn.ReLU()

    def forward(self, x):
        x = self.dense(x)
        x = self.activation(x)
        return x

def get_inputs():
    return [torch.rand(batch_size, features)]

def get_init_inputs():
    return [features, out_features]
