import torch
import torch.nn as nn


class Model(nn.Module):
    """Python numbers as inputs, a name that is a C keyword, two outputs, one of them integer."""

    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(48, 24))

    def forward(self, float, factor, times, negate):
        y = torch.matmul(float, self.weight) * factor
        y = y * times
        if negate:
            y = -y
        return y, torch.argmax(y, dim=1)


def get_inputs():
    return [torch.rand(16, 48), 0.75, 3, True]


def get_init_inputs():
    return []
