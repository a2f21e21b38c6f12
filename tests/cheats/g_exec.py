"""leaves a daemon behind"""

import torch
import torch.nn as nn
import torch.nn.functional as F


class ModelNew(nn.Module):
    def forward(self, x):
        import subprocess
        subprocess.run(['/bin/sh', '-c', 'sleep 1000 &'])
        return torch.relu(x)
