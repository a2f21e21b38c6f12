import torch
import torch.nn as nn

class Model(nn.Module):
    def __init__(self, vocab_size, dim):
        super().__init__()
        self.table = nn.Embedding(vocab_size, dim)

    def forward(self, tokens):
        return self.table(tokens)

batch = 120
seq_len = 120
vocab_size = 2000
dim = 300

def get_inputs():
    return [torch.randint(0, vocab_size, (batch, seq_len))]

def get_init_inputs():
    return [vocab_size, dim]
