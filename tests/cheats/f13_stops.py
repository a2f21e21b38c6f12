"""stops itself"""

import torch
import torch.nn as nn
import torch.nn.functional as F


class ModelNew(nn.Module):
    def forward(self, x):
        import os, signal
        os.kill(os.getpid(), signal.SIGSTOP)
        return torch.relu(x)
