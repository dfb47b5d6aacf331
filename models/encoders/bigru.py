"""The recurrent text encoder of the papers: word embeddings and a bidirectional GRU."""

import torch
from torch import Tensor, nn

from polyview.models.encoders.encoder import TextEncoder
from polyview.models.gru import gru_states, trains_on_cpu


class BiGRUTextEncoder(TextEncoder):
    """Word embeddings and a BiGRU whose directions are averaged, as in the papers' RNN variants.

    For the backward direction, a gather reverses each text within its length. The result equals
    that of packed sequences, which cannot be exported to ONNX.

    Args:
        vocab_size: number of token ids; id 0 is padding.
        word_dim: width of a word's embedding.
        hidden_dim: width d of the features.
        dropout: dropout rate of word embeddings in training.
        directions: 2 for a BiGRU; 1 for a forward GRU (MV-VSE's release); 0 for word embeddings
            alone, of width d = word_dim (for PVSE, whose head includes a GRU).
    """

    def __init__(
        self,
        vocab_size: int,
        word_dim: int = 300,
        hidden_dim: int = 1024,
        dropout: float = 0.0,
        directions: int = 2,
    ) -> None:
        super().__init__()
        if directions not in (0, 1, 2):
            raise ValueError(f"directions must be 0, 1 or 2, not {directions}")
        self.dim = hidden_dim if directions else word_dim
        self.embed = nn.Embedding(vocab_size, word_dim, padding_idx=0)
        self.dropout = nn.Dropout(dropout)
        self.forward_gru, self.backward_gru = (
            nn.GRU(word_dim, hidden_dim, batch_first=True) if is_used else None
            for is_used in (directions > 0, directions > 1)
        )
        nn.init.uniform_(self.embed.weight, -0.1, 0.1)
        with torch.no_grad():
            self.embed.weight[0].zero_()

    def forward(self, ids: Tensor, lengths: Tensor) -> Tensor:
        words = self.dropout(self.embed(ids))  # (B, L, word_dim)
        positions = torch.arange(ids.shape[1], device=ids.device)[None]  # (1, L)
        mask = positions < lengths[:, None]  # (B, L)
        if self.forward_gru is None:
            return words * mask[..., None]
        if trains_on_cpu(self, words):
            grus = [gru for gru in (self.forward_gru, self.backward_gru) if gru is not None]
            states = gru_states(grus, words, lengths)  # (B, L, G * d) for G GRUs
            return states.unflatten(2, (len(grus), -1)).mean(dim=2)
        forward_states, _ = self.forward_gru(words)  # (B, L, d)
        if self.backward_gru is None:
            return forward_states * mask[..., None]
        # (B, L, 1): positions that reverse each text and leave its padding in place
        reversal = torch.where(mask, lengths[:, None] - 1 - positions, positions)[..., None]
        reversed_words = words.gather(1, reversal.expand(-1, -1, words.shape[2]))
        reversed_states, _ = self.backward_gru(reversed_words)
        indices = reversal.expand(-1, -1, reversed_states.shape[2])  # (B, L, d)
        backward_states = reversed_states.gather(1, indices)  # in the order of the words
        return (forward_states + backward_states) / 2 * mask[..., None]
