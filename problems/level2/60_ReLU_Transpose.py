import torch
import torch.nn as nn
import torch.nn.functional as F

class Model(nn.Module):
    def forward(self, x):
        x = F.relu(x)
        return torch.transpose(x, 0, 1).contiguous()

batch_size = 484
dim = 1100

def get_inputs():
    return [torch.rand(batch_size, dim)]

def get_init_inputs():
    return []
