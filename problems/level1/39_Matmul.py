import torch
import torch.nn as nn

class Model(nn.Module):
    def forward(self, hidden, other):
        hidden = torch.matmul(hidden, other)
        return hidden

num_rows = 128
features = 512
kv_len = 256

def get_inputs():
    return [torch.randn(num_rows, features), torch.randn(features, kv_len)]

def get_init_inputs():
    return []
