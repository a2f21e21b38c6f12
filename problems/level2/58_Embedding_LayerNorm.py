import torch
import torch.nn as nn

class Model(nn.Module):
    def __init__(self, num_embeddings, embed_dim):
        super().__init__()
        self.embedding = nn.Embedding(num_embeddings, embed_dim)
        self.layer_norm = nn.LayerNorm(embed_dim)

    def forward(self, ids):
        ids = self.embedding(ids)
        return self.layer_norm(ids)

batch = 32
seq_len = 120
num_embeddings = 2000
embed_dim = 236

def get_inputs():
    return [torch.randint(0, num_embeddings, (batch, seq_len))]

def get_init_inputs():
    return [num_embeddings, embed_dim]
