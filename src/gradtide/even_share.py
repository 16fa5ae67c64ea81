"""The even share of one owner: the one cut of batches, parameters, tensors and pages."""

__all__ = ["even_share"]


def even_share(things: int, owner: int, owners: int, grain: int = 1) -> tuple[int, int]:
    """Where one owner's share begins and ends: it is made of whole grains, but for the last one of all, and no two
    owners' shares differ by more than a grain. (The kernels compile this too, for numba's integers.)"""
    grains = (things + grain - 1) // grain
    return min(things, grains * owner // owners * grain), min(things, grains * (owner + 1) // owners * grain)
