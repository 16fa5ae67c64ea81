"""What random programs are made of: layers of several kinds, optimizers of their parameters, hooks."""

import torch
from random_batches import WIDTH
from torch import nn
from torch.nn import functional

ROWS = 4  # of embeddings

KINDS = ("convolution", "layer norm", "batch norm", "embedding", "sparse embedding", "sparse bag")
SPARSE = ("sparse embedding", "sparse bag")
LOOSE = ("dropout", "live batch norm")  # of which each worker has its own masks or statistics


def make_layer(kind):
    match kind:
        case "convolution":
            return nn.Conv1d(1, 1, WIDTH, padding=WIDTH // 2)
        case "layer norm":
            return nn.LayerNorm(WIDTH)
        case "batch norm" | "live batch norm":
            return nn.BatchNorm1d(WIDTH)
        case "embedding" | "sparse embedding":
            return nn.Embedding(ROWS, WIDTH, sparse=kind.startswith("sparse"))
        case "sparse bag":
            return nn.EmbeddingBag(ROWS, WIDTH, sparse=True, mode="sum")
    return nn.Linear(WIDTH, WIDTH)


def through(layer, kind, hidden, x):
    """Of the same rows of what came before and of the batch."""
    rows = (x[:, 0] > 0).long() + 2 * (x[:, 1] > 0).long()
    match kind:
        case "convolution":
            return torch.tanh(layer(hidden.unsqueeze(1)).squeeze(1))
        case "layer norm" | "live batch norm":
            return layer(hidden)
        case "batch norm":  # with statistics that stay, as in fine-tuning
            return functional.batch_norm(hidden, layer.running_mean, layer.running_var, layer.weight, layer.bias)
        case "embedding" | "sparse embedding":
            return hidden + layer(rows)
        case "sparse bag":
            return hidden + layer(torch.stack([rows, ROWS - 1 - rows], 1))
        case "dropout":
            return functional.dropout(torch.tanh(layer(hidden)), 0.5, layer.training)
    return torch.tanh(layer(hidden))


def make_optimizers(specs, net):
    """A tied parameter is in one of them only."""
    taken, made = set(), []
    for spec in specs:
        groups = []
        for group in spec["groups"]:
            parameters = {id(p): p for number in group["layers"] for p in net.layers[number].parameters()}
            mine = [p for number, p in parameters.items() if number not in taken]
            taken.update(parameters)
            groups.append({"params": mine, **{k: v for k, v in group.items() if k != "layers"}})
        options = {k: v for k, v in spec.items() if k not in ("kind", "groups")}
        made.append(getattr(torch.optim, spec["kind"])(groups, **options))
    return made


def place_hook(hook, net, optimizers, note):
    """`note` is called by one that only looks on."""
    layer = net.layers[hook.get("layer", 0) % len(net.layers)]
    mask = torch.arange(WIDTH) % 2 == 0

    def clip(*_):
        nn.utils.clip_grad_norm_(net.parameters(), 0.05)

    def shrink_grad(p):
        p.grad.mul_(0.5)

    def halve(_module, gradients, _outputs):
        return tuple(None if g is None else g * 0.5 for g in gradients)

    match hook["on"]:
        case "forward":
            layer.register_forward_hook(lambda _module, _inputs, outputs: outputs * 0.5)
        case "module":
            layer.register_full_backward_hook(halve)
        case "gradient" if layer.weight.requires_grad:
            layer.weight.register_hook(lambda g: g * mask)
        case "accumulated" if layer.weight.requires_grad:
            layer.weight.register_post_accumulate_grad_hook(shrink_grad)
        case "before step":
            optimizers[0].register_step_pre_hook(clip)
        case "after step":
            optimizers[-1].register_step_post_hook(note)
