"""nn.Embedding by columns (features) and by rows (the vocabulary)."""

import torch
import torch.nn.functional as F
from torch import nn

from gradtide.parallel.split.layers.registry import Index, LayerPart, LayerWay, Slices, layer
from gradtide.schedule.step.costs import CutWay

__all__ = ["EmbeddingColumns", "EmbeddingRows", "VocabularyPart"]


@layer(nn.Embedding)
class EmbeddingColumns(LayerWay):
    """Each shard has some features of every word."""

    def way(self, module: nn.Module) -> CutWay | None:
        assert isinstance(module, nn.Embedding)
        if module.max_norm is not None or module.sparse:  # the norm is of whole rows
            return None
        return CutWay("columns", "whole", "sliced", most=module.embedding_dim)  # what it reads has no gradient

    def writes(self, module: nn.Module, part: LayerPart) -> Slices | None:
        assert isinstance(module, nn.Embedding)
        return Slices(-1, part.sizes(module.embedding_dim))

    def pieces(self, module: nn.Module, part: LayerPart) -> dict[str, Index | None]:
        assert isinstance(module, nn.Embedding)
        return {"weight": (slice(None), part.of(module.embedding_dim))}

    def local(self, module: nn.Module, part: LayerPart) -> nn.Module:
        assert isinstance(module, nn.Embedding)
        own = part.of(module.embedding_dim)
        return nn.Embedding(
            module.num_embeddings,
            own.stop - own.start,
            module.padding_idx,
            scale_grad_by_freq=module.scale_grad_by_freq,
            device="meta",
            dtype=module.weight.dtype,
        )


class VocabularyPart(nn.Module):
    """The rows of some words; other words are zero."""

    def __init__(self, own: slice, words: int, width: int, padding_idx: int | None, dtype: torch.dtype) -> None:
        super().__init__()
        self.words = words
        self.first, self.last = own.start, own.stop
        padded = padding_idx is not None and own.start <= padding_idx < own.stop
        self.padding_idx = padding_idx - own.start if padded and padding_idx is not None else None
        self.weight = nn.Parameter(torch.empty(own.stop - own.start, width, device="meta", dtype=dtype))

    def forward(self, words: torch.Tensor) -> torch.Tensor:
        if words.numel() and not words.is_meta and (int(words.min()) < 0 or int(words.max()) >= self.words):
            raise IndexError(f"index out of range: words are 0 to {self.words - 1}")  # as nn.Embedding does
        here = (words >= self.first) & (words < self.last)
        rows = torch.where(here, words - self.first, 0)
        found: torch.Tensor = F.embedding(rows, self.weight, self.padding_idx) * here.unsqueeze(-1)
        return found


@layer(nn.Embedding)
class EmbeddingRows(LayerWay):
    """Each shard has some words, and makes zeros of the others."""

    def way(self, module: nn.Module) -> CutWay | None:
        assert isinstance(module, nn.Embedding)
        if module.max_norm is not None or module.scale_grad_by_freq or module.sparse:  # they'd see words not there
            return None
        return CutWay("rows", "whole", "partial", most=module.num_embeddings)

    def pieces(self, module: nn.Module, part: LayerPart) -> dict[str, Index | None]:
        assert isinstance(module, nn.Embedding)
        return {"weight": (part.of(module.num_embeddings),)}

    def local(self, module: nn.Module, part: LayerPart) -> nn.Module:
        assert isinstance(module, nn.Embedding)
        own = part.of(module.num_embeddings)
        return VocabularyPart(own, module.num_embeddings, module.embedding_dim, module.padding_idx, module.weight.dtype)
