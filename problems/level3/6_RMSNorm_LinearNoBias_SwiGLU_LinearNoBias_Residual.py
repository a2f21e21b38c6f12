import torch
import torch.nn as nn
import torch.nn.functional as F

class Model(nn.Module):
    """Applies RMSNorm, LinearNoBias, SwiGLU, LinearNoBias and Residual."""
    def __init__(self, embed_dim, eps, out_features, out_features2):
        super().__init__()
        self.eps = eps
        self.gamma = nn.Parameter(torch.ones(embed_dim))
        self.fc = nn.Linear(embed_dim, out_features, bias=False)
        self.proj = nn.Linear(out_features // 2, out_features2, bias=False)

    def forward(self, x):
        res = x / torch.sqrt(x.pow(2).mean(-1, keepdim=True) + self.eps) * self.gamma
        res = self.fc(res)
        gate, up = res.chunk(2, dim=-1)
        res = F.silu(gate) * up
        res = self.proj(res)
        res = torch.add(res, x)
        return res

batch_size = 8
length = 40
embed_dim = 220
eps = 1e-6
out_features = 540
out_features2 = 220

def get_inputs():
    return [torch.rand(batch_size, length, embed_dim)]

def get_init_inputs():
    return [embed_dim, eps, out_features, out_features2]
