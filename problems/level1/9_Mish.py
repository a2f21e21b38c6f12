import torch
import torch.nn as nn
import torch.nn.functional as F

batch = 580
features = 750

class Model(nn.Module):
    """Applies Mish."""
    def forward(self, hidden):
        return hidden * torch.tanh(F.softplus(hidden))

def get_inputs():
    return [torch.rand(batch, features)]

def get_init_inputs():
    return []
