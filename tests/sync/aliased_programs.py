"""Programs in which something shares memory with parameters, or changes them, when they are shared between workers.

Each returns its tensors and, with gradtide, what `explain()` said at the end.
"""

import copy
import gc
import warnings

import programs
import torch
from programs import Around, batches, net, sgd
from torch import nn
from torch.nn import functional

from gradtide.collective import Group
from gradtide.errors import GradtideError
from gradtide.sync import Job
from gradtide.sync.shared import storages

STEPS = 9


def train(around, each=None, model=None, taken=(), between=None, by_hand=None):
    """`taken`: makes aliases of the model's memory before wrapping, after it, and after steps; every step records what
    is in all of them. `each` comes after a step, `between` before it."""
    model = model or net()
    aliases, seen = [], []
    if "before" in taken:
        aliases += taken["before"](model)
    rule = sgd(model)
    wrapped = around.wrap(model, rule)
    if "after" in taken:
        aliases += taken["after"](model)
    for step, (x, y) in enumerate(around.shard(batches(STEPS))):
        functional.cross_entropy(wrapped(x), y).backward()
        if between is not None:
            between(wrapped, step, x, y)
        if by_hand is not None and by_hand(step):
            rule.step()
            rule.zero_grad()
        else:
            wrapped.step()
        if step in taken:
            aliases += taken[step](model)
        if each is not None:
            each(wrapped, step)
        seen += [alias.detach().clone() for alias in aliases]
    said = wrapped.explain() if around.job else ""
    wrapped.close()
    gc.collect()
    with torch.no_grad():
        for parameter in model.parameters():  # it is an ordinary model again, and its aliases still see it
            parameter.mul_(0.5)
    return [*seen, *(alias.detach().clone() for alias in aliases), *programs.results(model)], said


# --- what shares memory with parameters ---


def kept(model):
    return list(model.state_dict().values())


def detached(model):
    return [p.detach() for p in model.parameters()]


def rows(model):
    return [model[0].weight.detach()[1:3, ::2], model[2].weight.data.view(-1)[5:]]


def kept_state_dict(around):
    return train(around, taken={"before": kept, "after": kept, 4: kept})


def polyak_average(around):
    averages = [p.detach().clone() for p in net().parameters()]
    live = []

    def keep(model):
        live.extend(p.detach() for p in model.parameters())
        return averages

    def each(wrapped, step):
        torch._foreach_lerp_(averages, live, 0.3)

    return train(around, each, taken={"before": keep})


def target_network(around):
    """The target loads a state that was taken once, and is part of the loss."""
    model = net()
    target, state = copy.deepcopy(model), model.state_dict()
    seen, rule = [], sgd(model)
    wrapped = around.wrap(model, rule)
    for step, (x, y) in enumerate(around.shard(batches(STEPS))):
        with torch.no_grad():
            wanted = target(x)
        outputs = wrapped(x)
        (functional.cross_entropy(outputs, y) + (outputs - wanted).square().mean()).backward()
        wrapped.step()
        if step % 2:
            target.load_state_dict(state)
        seen += programs.results(target)
    said = wrapped.explain() if around.job else ""
    wrapped.close()
    return [*seen, *programs.results(model)], said


def views_of_one(model, order=None, more=0):
    """Every parameter becomes a view of one tensor."""
    parameters = [list(model.parameters())[i] for i in order or range(len(list(model.parameters())))]
    flat = torch.cat([*(p.detach().reshape(-1) for p in parameters), torch.ones(more, dtype=torch.float64)])
    at = 0
    for p in parameters:
        p.data = flat[at : at + p.numel()].view(p.shape)
        at += p.numel()
    return flat


def one_flat_tensor(around):
    model = net()
    flat = views_of_one(model, order=[3, 0, 1, 5, 2, 4])
    return train(around, model=model, taken={"before": lambda model: [flat, flat[7:20]]})


def several_groups_in_one_tensor(around):
    model, seen = net(), []
    flat = views_of_one(model)
    biases, weights = (
        [p for n, p in model.named_parameters() if ("bias" in n) == is_bias] for is_bias in (True, False)
    )
    rule = torch.optim.AdamW([{"params": weights, "weight_decay": 0.3}, {"params": biases, "lr": 0.05}], lr=0.01)
    wrapped = around.wrap(model, rule)
    for x, y in around.shard(batches(STEPS)):
        functional.cross_entropy(wrapped(x), y).backward()
        wrapped.step()
        seen.append(flat.clone())
    said = wrapped.explain() if around.job else ""
    wrapped.close()
    return [*seen, *programs.results(model)], said


def across_an_edit(around):
    def each(wrapped, step):
        if step in (3, 5):
            with wrapped.edit(), torch.no_grad():
                for p in wrapped.parameters():
                    p.mul_(0.9).clamp_(-0.3, 0.3)
        if step == 6:
            wrapped.load_state_dict({name: value * 1.1 for name, value in wrapped.state_dict().items()})

    return train(around, each, taken={"before": kept, "after": rows, 4: detached})


def across_a_new_layout(around):
    """An edit puts other tensors in place of the shared ones; those that were there stay as they are."""

    def each(wrapped, step):
        if step == 4:
            with wrapped.edit():
                vector = torch.cat([p.detach().reshape(-1) * 0.9 for p in wrapped.parameters()])
                nn.utils.vector_to_parameters(vector, wrapped.parameters())

    return train(around, each, taken={"before": detached, 5: detached})


def across_a_new_way(around):
    """A layer is frozen for a while: the way begins anew."""

    def each(wrapped, step):
        if step in (3, 4):
            for p in list(wrapped.parameters())[:2]:
                p.requires_grad_(step == 4)

    return train(around, each, taken={"before": kept, 4: detached})


def a_second_training(around):
    model = net()
    alias, seen = kept(model), []
    for _ in range(2):
        tensors, said = train(around, model=model, taken={"before": lambda model: alias, 4: detached})
        seen += tensors
    return seen, said


def trained_on_without(around):
    """After close() the model and its optimizer are the program's, also when the wrapper goes."""
    model = net()
    rule = torch.optim.Adam(model.parameters(), lr=0.05)
    wrapped = around.wrap(model, rule)
    for x, y in around.shard(batches(STEPS)):
        functional.cross_entropy(wrapped(x), y).backward()
        wrapped.step()
    said = wrapped.explain() if around.job else ""
    wrapped.close()
    for step, (x, y) in enumerate(batches(6, seed=5)):
        functional.cross_entropy(model(x), y).backward()
        rule.step()
        rule.zero_grad()
        if step == 3:
            del wrapped
            gc.collect()
    return programs.results(model), said


def nothing_is_kept_for_nobody(around):
    """The memory that was shared goes with the sharing, unless somebody may look at it still."""
    model = net()
    tensors, said = train(around, model=model)
    kept_by = [storages._OUTLIVED in vars(p.untyped_storage()) for p in model.parameters()]
    return [*tensors, torch.tensor(kept_by, dtype=torch.float64)], said


SHARED = [
    kept_state_dict,
    polyak_average,
    target_network,
    one_flat_tensor,
    several_groups_in_one_tensor,
    across_an_edit,
    across_a_new_layout,
    across_a_new_way,
    a_second_training,
    trained_on_without,
    nothing_is_kept_for_nobody,
]


# --- what can't be shared ---


def tied_by_data(around):
    model = net()
    model[2].bias.data = model[0].bias.data
    return train(around, model=model)


def in_a_larger_tensor(around):
    model = net()
    flat = views_of_one(model, more=3)
    return train(around, model=model, taken={"before": lambda model: [flat]})


def seen_as_a_buffer(around):
    model = net()
    model.register_buffer("seen", model[0].weight.data)
    return train(around, model=model, taken={"before": lambda model: [model.seen]})


def seen_by_processes(around):
    return train(around, model=net().share_memory(), taken={"before": kept})


NOT_SHARED = {
    tied_by_data: "0.bias and 2.bias lie in the same memory",
    in_a_larger_tensor: "holds more than parameters in training",
    seen_as_a_buffer: "a buffer lie in the same memory",
    seen_by_processes: "is in memory that other processes may see",
}


# --- edits that begin when parameters are shared ---


def _edited(change, at=(4,)):
    def program(around):
        def each(wrapped, step):
            if step in at:
                with torch.no_grad():
                    change(wrapped)

        return train(around, each, taken={"before": kept})

    return program


def _scaled(model):
    for p in model.parameters():
        p.data.mul_(0.9)


def _one_element(model):
    list(model.parameters())[3].data[2] += 1e-3


def _through_views(model):
    for p in model.parameters():
        p.data.view(-1)[1:].clamp_(-0.2, 0.2)


def _through_numpy(model):
    for p in model.parameters():
        p.detach().numpy()[...] *= 0.9


def _from_a_vector(model):
    vector = nn.utils.parameters_to_vector(model.parameters())
    nn.utils.vector_to_parameters(vector.detach() * 0.9, model.parameters())


def _reinitialised(model):
    nn.init.constant_(next(iter(model.parameters())), 0.01)


def _between(change, from_step=5, **options):
    def program(around):
        def between(wrapped, step, *batch):
            if step >= from_step:
                change(wrapped)

        return train(around, between=between, taken={"before": kept}, **options)

    return program


def _clipped(model):
    nn.utils.clip_grad_norm_(model.parameters(), 0.1)


def _replaced(model):
    for p in model.parameters():
        p.grad = p.grad.sign() * 0.01


def _shrunk_when_large(model):
    for p in model.parameters():
        if p.grad.abs().max() > 1e-3:
            p.grad.data.mul_(0.5)


def norms_are_logged_by_one(around):
    """To look at is not to edit, and one worker may look alone."""
    norms = []

    def between(wrapped, step, *batch):
        if step >= 5 and around.rank == 0:
            norms.append(torch.stack([p.grad.norm() for p in wrapped.parameters()]))

    tensors, said = train(around, between=between)
    return [*tensors, *norms], said


def accumulated_then_clipped(around):
    """As long as gradients are only added up they may stay as they are."""

    def between(wrapped, step, x, y):
        functional.cross_entropy(wrapped(2 * x), y).backward()
        if step >= 5:
            _clipped(wrapped)

    return train(around, between=between)


EDITS = {
    "scaled": _edited(_scaled),
    "scaled at every step": _edited(_scaled, at=range(3, STEPS)),
    "one element": _edited(_one_element),
    "through views": _edited(_through_views),
    "through NumPy": _edited(_through_numpy),
    "from a vector": _edited(_from_a_vector),
    "reinitialised": _edited(_reinitialised),
    "after the last step": _edited(_scaled, at=(STEPS - 1,)),
    "clipped": _between(_clipped),
    "clipped, then stepped by hand": _between(_clipped, by_hand=lambda step: step >= 5),
    "stepped by hand": _between(lambda model: None, by_hand=lambda step: step >= 5),
    "gradients replaced": _between(_replaced),
    "gradients shrunk": _between(_shrunk_when_large),
    "norms are logged by one": norms_are_logged_by_one,
    "accumulated, then clipped": accumulated_then_clipped,
}


# --- mistakes ---


def one_edits_alone(around):
    def each(wrapped, step):
        if step == 4 and around.rank == 1:
            _scaled(wrapped)

    return train(around, each)


def _at_last_alone(change):
    """On one worker, after the last step: only the comparison in close() is left to see it."""

    def program(around):
        def each(wrapped, step):
            if step == STEPS - 1 and around.rank == 1:
                change(wrapped.module[2].weight.data)

        return train(around, each)

    return program


AT_LAST_ALONE = {
    "negated alone": _at_last_alone(lambda values: values.neg_()),
    "turned round alone": _at_last_alone(lambda values: values.copy_(values.flip(0).clone())),
}


def keeps_a_gradient(around):
    """What is kept beyond a step can't become whole."""
    grads = []

    def between(wrapped, step, *batch):
        grads.append(next(wrapped.parameters()).grad)

    train(around, between=between)
    return [gradient.norm() for gradient in grads], ""


def numpy_outlives(around):
    """Arrays are bare addresses: they keep what they showed, whatever comes after."""
    model = net()
    before = [p.detach().numpy() for p in model.parameters()]
    during = []

    def each(wrapped, step):
        if step == 5:
            during.extend(p.detach().numpy() for p in wrapped.parameters())

    train(around, each, model=model)
    ended = programs.results(model)
    del model
    gc.collect()
    torch.ones(1 << 20).mul_(3)
    return [torch.from_numpy(a).clone() for a in (*before, *during)], [len(before), ended]


PROGRAMS = {
    **{program.__name__: program for program in (*SHARED, *NOT_SHARED)},
    **EDITS,
    **AT_LAST_ALONE,
    **{program.__name__: program for program in (one_edits_alone, keeps_a_gradient, numpy_outlives)},
}


def alone(program):
    return PROGRAMS[program](Around())[0]


def run(rank, size, name, program, options):
    """As one of several workers: tensors, what explain() said, and what was warned of; or the refusal."""
    with Group.join(name, rank, size, timeout_s=30) as group:
        try:
            with warnings.catch_warnings(record=True) as caught:
                warnings.simplefilter("always")
                tensors, said = PROGRAMS[program](Around(Job.of(group), options))
            return tensors, said, [str(one.message) for one in caught if "shared no more" in str(one.message)]
        except GradtideError as error:
            return f"{type(error).__name__}: {error}"
