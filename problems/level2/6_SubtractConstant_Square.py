import torch
import torch.nn as nn

class Model(nn.Module):
    """Model that performs SubtractConstant and Square."""
    def __init__(self, threshold):
        super().__init__()
        self.threshold = threshold

    def forward(self, input):
        input = input - self.threshold
        return input * input

batch_size = 1100
hidden_size = 1100
threshold = 0.5

def get_inputs():
    return [torch.rand(batch_size, hidden_size)]

def get_init_inputs():
    return [threshold]
