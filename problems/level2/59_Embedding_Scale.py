import torch
import torch.nn as nn

class Model(nn.Module):
    def __init__(self, num_embeddings, dim):
        super().__init__()
        self.table = nn.Embedding(num_embeddings, dim)

    def forward(self, tokens):
        tokens = self.table(tokens)
        return 2.0 * tokens

batch_size = 16
length = 144
num_embeddings = 1000
dim = 220

def get_inputs():
    return [torch.randint(0, num_embeddings, (batch_size, length))]

def get_init_inputs():
    return [num_embeddings, dim]
