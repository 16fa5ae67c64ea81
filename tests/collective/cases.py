"""What ranks do in tests. Each rank knows every rank's input, so each computes what should come out by itself."""

import math
from dataclasses import dataclass

import torch
from ranks import own

from gradtide.collective.groups.group import Group

FLOATS = (torch.float32, torch.float64, torch.bfloat16, torch.float16)
INTEGERS = (torch.int8, torch.uint8, torch.int16, torch.int32, torch.int64)
COMPLEX = (torch.complex64, torch.complex128)
DTYPES = (*FLOATS, *INTEGERS, *COMPLEX, torch.bool)
COMBINE = {
    "sum": torch.add,
    "mean": torch.add,
    "min": torch.minimum,
    "max": torch.maximum,
    "product": torch.mul,
    "band": torch.bitwise_and,
    "bor": torch.bitwise_or,
    "bxor": torch.bitwise_xor,
}
_groups: dict[tuple[str, int], Group] = {}


def reductions_of(dtype: torch.dtype) -> tuple[str, ...]:
    if dtype in COMPLEX:
        return ("sum", "mean", "product")
    if dtype in FLOATS:
        return ("sum", "mean", "min", "max", "product")
    return ("sum", "min", "max", "product", "band", "bor", "bxor")


@dataclass(frozen=True)
class Case:
    operation: str
    reduction: str
    dtype: torch.dtype
    shape: tuple[int, ...]
    layout: str  # plain, strided, shared
    root: int
    seed: int
    background: bool = False


def group_of(rank: int, size: int, name: str = "cases") -> Group:
    if (name, size) not in _groups:
        _groups[name, size] = Group.join(own(f"test-{name}-{size}"), rank, size, timeout_s=30)
    return _groups[name, size]


def data(case: Case, rank: int, shape: tuple[int, ...]) -> torch.Tensor:
    generator = torch.Generator().manual_seed(case.seed * 1000 + rank)
    if case.dtype == torch.bool:
        return torch.randint(0, 2, shape, generator=generator).bool()
    if case.dtype in INTEGERS:
        return torch.randint(-128, 128, shape, generator=generator).to(case.dtype)
    values = torch.randn(shape, generator=generator, dtype=torch.float64)
    if case.dtype in COMPLEX:
        return torch.complex(values, torch.randn(shape, generator=generator, dtype=torch.float64)).to(case.dtype)
    values = values * 10.0 ** torch.randint(-3, 4, shape, generator=generator)
    if case.reduction in ("min", "max") and values.numel():
        values.view(-1)[torch.randint(0, values.numel(), (1,), generator=generator)] = math.nan
    return values.to(case.dtype)


def laid_out(values: torch.Tensor, case: Case, group: Group) -> torch.Tensor:
    if case.layout == "shared":
        tensor = group.shared_tensor(tuple(values.shape), values.dtype)
        return tensor.copy_(values)
    if case.layout == "strided":
        wide = torch.zeros((*values.shape, 3), dtype=values.dtype)
        return wide[..., 1].copy_(values)
    return values.clone()


def reduced(case: Case, tensors: list[torch.Tensor]) -> torch.Tensor:
    total = tensors[0].clone()
    for tensor in tensors[1:]:
        total = COMBINE[case.reduction](total, tensor)
    return total.div_(len(tensors)) if case.reduction == "mean" else total


def same(got: torch.Tensor, expected: torch.Tensor) -> bool:
    """Bit for bit; any NaN is as good as another."""
    assert got.dtype == expected.dtype
    assert got.shape == expected.shape
    if not got.dtype.is_floating_point:
        return torch.equal(got, expected)
    nan = got.isnan()
    if not torch.equal(nan, expected.isnan()):
        return False
    kind = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}[got.element_size()]
    return torch.equal(got.masked_fill(nan, 0).view(kind), expected.masked_fill(nan, 0).view(kind))


def check(rank: int, size: int, case: Case) -> str:
    """Runs one case; returns what is wrong, or nothing."""
    group, root, op = group_of(rank, size), case.root % size, case.operation
    rows = op in ("reduce_scatter", "all_to_all")
    shape = (size, *case.shape) if rows else case.shape
    inputs = [data(case, r, shape) for r in range(size)]
    mine = laid_out(inputs[rank], case, group)
    handle = {"async_op": case.background}
    if op in ("all_reduce", "reduce"):
        arguments = (mine, case.reduction) if op == "all_reduce" else (mine, case.reduction, root)
        got = getattr(group, op)(*arguments, **handle)
        expected = reduced(case, inputs) if op == "all_reduce" or rank == root else inputs[rank]
    elif op == "broadcast":
        got, expected = group.broadcast(mine, root, **handle), inputs[root]
    elif op in ("all_gather", "gather"):
        got = group.all_gather(mine, **handle) if op == "all_gather" else group.gather(mine, root, **handle)
        expected = torch.stack(inputs) if op == "all_gather" or rank == root else None
    elif op == "scatter":
        source = data(case, 99, (size, *case.shape))
        given = laid_out(source, case, group) if case.layout != "shared" else source
        got = group.scatter(mine, given if rank == root else None, root, **handle)
        expected = source[rank]
    elif op == "reduce_scatter":
        got, expected = group.reduce_scatter(mine, case.reduction, **handle), reduced(case, [t[rank] for t in inputs])
    elif op == "all_to_all":
        got, expected = group.all_to_all(mine, **handle), torch.stack([t[rank] for t in inputs])
    else:
        return _ring(group, mine, inputs)
    if case.background:
        got = got.wait(30)
    if expected is None:
        return "" if got is None else "expected nothing"
    if op not in ("all_reduce", "reduce", "broadcast", "scatter") and not torch.equal(mine, inputs[rank]):
        return "" if case.dtype.is_floating_point else "the input changed"
    return "" if same(got, expected) else f"rank {rank}: got {got}, expected {expected}"


def _ring(group: Group, mine: torch.Tensor, inputs: list[torch.Tensor]) -> str:
    """Everybody receives from the left, then sends to the right, all in the background."""
    if group.size == 1:
        return ""
    left, right = (group.rank - 1) % group.size, (group.rank + 1) % group.size
    got = torch.empty_like(mine)
    receiving = group.recv(got, left, async_op=True)
    group.send(mine, right, async_op=True).wait(30)
    receiving.wait(30)
    return "" if same(got, inputs[left]) else f"rank {group.rank}: got {got}, expected {inputs[left]}"
