"""nn.Linear by columns (outputs), by rows (inputs), and by both."""

import torch
import torch.nn.functional as F
from torch import nn

from gradtide.parallel.split.layers.registry import Index, LayerPart, LayerWay, Slices, layer
from gradtide.schedule.step.costs import CutWay

__all__ = ["LinearColumns", "LinearRows", "LinearTile", "LinearTiles", "grid"]

EVERY = slice(None)


def _local(module: nn.Linear, inputs: int, outputs: int, bias: bool) -> nn.Linear:
    return nn.Linear(inputs, outputs, bias=bias, device="meta", dtype=module.weight.dtype)


@layer(nn.Linear)
class LinearColumns(LayerWay):
    """Each shard makes some of the outputs, from all inputs."""

    def way(self, module: nn.Module) -> CutWay | None:
        assert isinstance(module, nn.Linear)
        return CutWay("columns", "whole", "sliced", "partial", most=module.out_features)

    def writes(self, module: nn.Module, part: LayerPart) -> Slices | None:
        assert isinstance(module, nn.Linear)
        return Slices(-1, part.sizes(module.out_features))

    def pieces(self, module: nn.Module, part: LayerPart) -> dict[str, Index | None]:
        assert isinstance(module, nn.Linear)
        own = part.of(module.out_features)
        return {"weight": (own,), "bias": (own,)}

    def local(self, module: nn.Module, part: LayerPart) -> nn.Module:
        assert isinstance(module, nn.Linear)
        own = part.of(module.out_features)
        return _local(module, module.in_features, own.stop - own.start, module.bias is not None)


@layer(nn.Linear)
class LinearRows(LayerWay):
    """Each shard reads some of the inputs, and makes a part of the sum that the outputs are. Shard 0 adds the bias."""

    def way(self, module: nn.Module) -> CutWay | None:
        assert isinstance(module, nn.Linear)
        return CutWay("rows", "sliced", "partial", most=module.in_features)

    def reads(self, module: nn.Module, part: LayerPart) -> Slices | None:
        assert isinstance(module, nn.Linear)
        given = part.given
        if given is not None and given.dim == -1 and given.total == module.in_features:
            return given
        return Slices(-1, part.sizes(module.in_features))

    def pieces(self, module: nn.Module, part: LayerPart) -> dict[str, Index | None]:
        assert part.given is not None
        return {"weight": (EVERY, part.given.of(part.shard)), "bias": () if part.shard == 0 else None}

    def local(self, module: nn.Module, part: LayerPart) -> nn.Module:
        assert isinstance(module, nn.Linear)
        assert part.given is not None
        bias = module.bias is not None and part.shard == 0
        return _local(module, part.given.sizes[part.shard], module.out_features, bias)


def grid(shards: int) -> tuple[int, int]:
    """Shards in columns x rows, as square as can be; (1, shards) if it is a prime."""
    columns = next(n for n in range(int(shards**0.5), 0, -1) if shards % n == 0)
    return columns, shards // columns


class LinearTile(nn.Module):
    """Some inputs' part of some outputs; the other outputs are zero."""

    def __init__(self, rows: slice, columns: slice, outputs: int, bias: bool, dtype: torch.dtype) -> None:
        super().__init__()
        self.rows = rows
        self.margins = (columns.start, outputs - columns.stop)
        height, width = columns.stop - columns.start, rows.stop - rows.start
        self.weight = nn.Parameter(torch.empty(height, width, device="meta", dtype=dtype))
        self.bias = nn.Parameter(torch.empty(height, device="meta", dtype=dtype)) if bias else None

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return F.pad(F.linear(x[..., self.rows], self.weight, self.bias), self.margins)


@layer(nn.Linear)
class LinearTiles(LayerWay):
    """A grid: each shard reads some inputs, and makes its part of some outputs."""

    def way(self, module: nn.Module) -> CutWay | None:
        assert isinstance(module, nn.Linear)
        columns, rows = module.out_features, module.in_features
        grids = {shards: grid(shards) for shards in range(4, 257)}
        fitting = tuple(k for k, (a, b) in grids.items() if a > 1 and a <= columns and b <= rows)
        return CutWay("both", "whole", "partial", "partial", most=max(fitting), at=fitting) if fitting else None

    def tile(self, module: nn.Linear, part: LayerPart) -> tuple[slice, slice]:
        columns, rows = grid(part.shards)
        column, row = divmod(part.shard, rows)
        return LayerPart(column, columns).of(module.out_features), LayerPart(row, rows).of(module.in_features)

    def pieces(self, module: nn.Module, part: LayerPart) -> dict[str, Index | None]:
        assert isinstance(module, nn.Linear)
        columns, rows = self.tile(module, part)
        return {"weight": (columns, rows), "bias": (columns,) if rows.start == 0 else None}

    def local(self, module: nn.Module, part: LayerPart) -> nn.Module:
        assert isinstance(module, nn.Linear)
        columns, rows = self.tile(module, part)
        bias = module.bias is not None and rows.start == 0
        return LinearTile(rows, columns, module.out_features, bias, module.weight.dtype)
