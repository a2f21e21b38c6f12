import torch
import torch.nn as nn
import torch.nn.functional as F

class Model(nn.Module):
    def __init__(self, num_channels, out_features, out_features2):
        super().__init__()
        self.proj = nn.Linear(num_channels, out_features)
        self.linear = nn.Linear(out_features, out_features2)

    def forward(self, x):
        out = F.adaptive_avg_pool2d(x, 1).flatten(1)
        out = self.proj(out)
        out = out.relu()
        out = self.linear(out)
        out = torch.sigmoid(out)
        out = x * out[:, :, None, None]
        return out

batch_size = 16
num_channels = 52
height = 40
width = 40
out_features = 16
out_features2 = 52

def get_inputs():
    return [torch.rand(batch_size, num_channels, height, width)]

def get_init_inputs():
    return [num_channels, out_features, out_features2]
