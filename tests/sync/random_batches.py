"""What random programs learn from: batches of several kinds, and losses over them."""

import torch
from torch.nn import functional

WIDTH = 3
IGNORED = -100
CLASS_WEIGHTS = torch.tensor([1.0, 0.25, 3.0], dtype=torch.float64)


def batches_of(case, steps, first):
    draw = torch.Generator().manual_seed(1000 * case.get("seed", 0) + first)
    for step in steps:
        for backward in step["backwards"]:
            size = backward["size"]
            x = torch.randn(size, WIDTH, dtype=torch.float64, generator=draw)
            y = torch.randint(WIDTH, (size,), generator=draw)
            yield _packed(case, x, y, _mask_of(case, size, draw))


def _mask_of(case, size, draw):
    """A sample has its own, or the batch has one, which is not to be cut."""
    if "masks" not in case:
        return None
    shape = (size, WIDTH) if case["masks"] == "a sample" else (WIDTH,)
    return torch.randint(2, shape, generator=draw).double()


def whole_in(case):
    """Of a batch: what every worker gets as it is."""
    if case.get("masks") != "a batch":
        return {}
    return {"whole": [{"dict": "mask", "nested": "in.mask"}.get(case.get("batch"), "2")]}


def _packed(case, x, y, mask):
    more = [] if mask is None else [mask]
    named = {} if mask is None else {"mask": mask}
    match case.get("batch"):
        case "dict":
            return {"x": x, "y": y, **named}
        case "nested":
            return {"in": {"x": x, **named}, "out": [y, {"again": y}]}
        case "strings":
            return [x, [str(int(label)) for label in y], *more]
    return (x, y, *more)


def unpacked(case, batch):
    """x, y and the mask, or None."""
    match case.get("batch"):
        case "dict":
            return batch["x"], batch["y"], batch.get("mask")
        case "nested":
            assert torch.equal(batch["out"][0], batch["out"][1]["again"])
            return batch["in"]["x"], batch["out"][0], batch["in"].get("mask")
        case "strings":
            batch = [batch[0], torch.tensor([int(label) for label in batch[1]]), *batch[2:]]
    return (*batch, None)[:3]


def terms_of(kind, y):
    """What each sample counts in its part's mean."""
    if kind == "class weights":
        return CLASS_WEIGHTS[y]
    return (y != IGNORED).double() if kind == "tokens" else torch.ones(len(y), dtype=torch.float64)


def loss_of(kind, outputs, y):
    if kind == "tokens":
        there = bool((y != IGNORED).any())
        return functional.cross_entropy(outputs, y, ignore_index=IGNORED) if there else outputs.sum() * 0
    if kind == "class weights":
        return functional.cross_entropy(outputs, y, weight=CLASS_WEIGHTS)
    if kind == "scaled sum":
        return functional.cross_entropy(outputs, y, reduction="sum") / len(y)
    if kind == "squares":
        return (outputs - functional.one_hot(y, WIDTH)).square().mean()
    return functional.cross_entropy(outputs, y)
