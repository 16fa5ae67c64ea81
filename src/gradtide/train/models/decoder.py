"""A small transformer decoder: what a split meets in language models, at a size that trains in seconds."""

import torch
from torch import Tensor, nn
from torch.nn import functional

from gradtide.errors import ConfigError

__all__ = ["Transformer", "TransformerBlock", "transformer"]


class CausalAttention(nn.Module):
    """Each place of a text looks at those before it."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.query, self.key, self.value = (nn.Linear(width, width) for _ in range(3))
        self.out = nn.Linear(width, width)

    def forward(self, x: Tensor) -> Tensor:
        query, key, value = (
            layer(x).unflatten(-1, (self.heads, -1)).transpose(1, 2) for layer in (self.query, self.key, self.value)
        )
        seen = functional.scaled_dot_product_attention(query, key, value, is_causal=True)
        mixed: Tensor = self.out(seen.transpose(1, 2).flatten(-2))
        return mixed


class TransformerBlock(nn.Module):
    """Attention and an MLP, each normalised before and skipped over."""

    def __init__(self, width: int, heads: int, dropout: float) -> None:
        super().__init__()
        self.norm1, self.attention, self.drop1 = nn.LayerNorm(width), CausalAttention(width, heads), nn.Dropout(dropout)
        self.norm2, self.drop2 = nn.LayerNorm(width), nn.Dropout(dropout)
        self.up, self.act, self.down = nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.drop1(self.attention(self.norm1(x)))
        mixed: Tensor = self.drop2(self.down(self.act(self.up(self.norm2(x)))))
        return x + mixed


class Transformer(nn.Module):
    """Tokens (samples x places) to scores (samples x tokens x places, as functional.cross_entropy reads them)."""

    def __init__(self, vocabulary: int, length: int, width: int, heads: int, layers: int, dropout: float) -> None:
        super().__init__()
        self.width = width
        self.token = nn.Embedding(vocabulary, width)
        self.position = nn.Embedding(length, width)
        self.drop = nn.Dropout(dropout)
        self.blocks = nn.Sequential(*(TransformerBlock(width, heads, dropout) for _ in range(layers)))
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, vocabulary, bias=False)
        self.head.weight = self.token.weight

    def forward(self, tokens: Tensor) -> Tensor:
        places = torch.arange(tokens.shape[1], device=tokens.device).expand_as(tokens)
        x = self.blocks(self.drop(self.token(tokens) + self.position(places)))
        # The embeddings' variance is 1, so the scores' would be the width.
        scores: Tensor = self.head(self.norm(x) * self.width**-0.5)
        return scores.transpose(1, 2)


def transformer(
    *, vocabulary: int = 96, length: int = 32, width: int = 64, heads: int = 4, layers: int = 2, dropout: float = 0.1
) -> nn.Module:
    """A decoder whose last layer is tied to its token embedding."""
    if width % heads:
        raise ConfigError(f"a width of {width} can't be dealt to {heads} heads; take a multiple of the heads")
    return Transformer(vocabulary, length, width, heads, layers, dropout)
