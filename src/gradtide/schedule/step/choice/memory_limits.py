"""The least memory a device that a model can be split into: what would fit, where nothing does."""

import numpy as np

from gradtide.schedule.step.choice.figures import Figure
from gradtide.schedule.step.layout import Order
from gradtide.schedule.step.score import BatchTerms, alive, stage_bytes
from gradtide.schedule.step.search import DEEPEST, LayoutSearch, StageOption

__all__ = ["least_bytes"]

HALVINGS = 24


def least_bytes(search: LayoutSearch) -> float:
    """The fewest bytes that the fullest device needs, over all layouts, with the most micro-batches that are allowed
    and activations computed again where that needs less. Of more than a few stages it is what the deepest would need,
    so there may be a layout that needs a little less."""
    order: Order = next((one for one in search.wishes.orders if one != "gpipe"), "gpipe")
    batch = BatchTerms(search.samples, max(search.wishes.counts(search.samples)), order)
    most = min(search.triangle.units, len(search.devices))
    deepest = alive(order, batch.micro_batches, most, most)
    depths = [*range(1, min(deepest, DEEPEST)), deepest] if order not in ("gpipe", "zero-bubble") else [deepest]
    layers = [search.least_of_rows([_need(one, batch, kept) for one in search.options]) for kept in depths]
    low, high = 0.0, float(max(layer.max() for layer in layers))
    for _ in range(HALVINGS):
        middle = (low + high) / 2
        _, stages = search.sweep.best([np.where(layer <= middle, 0.0, np.inf) for layer in layers])
        if stages:
            high = max(search.of_row(layers[one.layer - 1], one) for one in stages)
        else:
            low = middle
    return high


def _need(option: StageOption, batch: BatchTerms, kept: int) -> Figure:
    share = batch.largest_share(option.place.copies)
    return np.minimum(
        *(stage_bytes(option.figures, kept, share, option.place.copies, recompute=again) for again in (False, True))
    )
