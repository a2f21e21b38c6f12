"""a message that stock evaluation takes for a race"""

import torch
import torch.nn as nn
import torch.nn.functional as F


class ModelNew(nn.Module):
    def forward(self, x):
        raise RuntimeError('lock: No such file or directory')
