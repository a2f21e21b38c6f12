import torch
import torch.nn as nn
class Model(nn.Module):
    def forward(self, a, b):
        return torch.cat([a, b], dim=0)
def get_inputs():
    return [torch.rand(512, 1024), torch.rand(512, 1024)]
def get_init_inputs():
    return []
