import torch
import torch.nn as nn
import torch.nn.functional as F

class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.tanh = nn.Tanh()

    def forward(self, inp, targets):
        inp = self.tanh(inp)
        inp = F.smooth_l1_loss(inp, targets)
        return inp

batch_size = 460
width = 1100

def get_inputs():
    return [torch.rand(batch_size, width), torch.rand(batch_size, width)]

def get_init_inputs():
    return []
