"""The same, and the error is kept quiet: it is still no trouble of the verifier's."""

import torch
from torch.utils.cpp_extension import load_inline

try:
    load_inline("e", '# 1 "bwrap: "\nint f( {', functions=["f"])
except Exception:
    pass


class ModelNew(torch.nn.Module):
    def forward(self, x):
        return x + 1
