import torch
import torch.nn as nn

class Model(nn.Module):
    """MeanDim1 -> Linear -> ReLU."""
    def __init__(self, dim, hidden_dim):
        super().__init__()
        self.fc = nn.Linear(dim, hidden_dim)

    def forward(self, hidden):
        out = hidden.mean(dim=1)
        out = self.fc(out)
        return out.clamp(min=0)

batch_size = 60
seq_len = 60
dim = 580
hidden_dim = 250

def get_inputs():
    return [torch.randn(batch_size, seq_len, dim)]

def get_init_inputs():
    return [dim, hidden_dim]
