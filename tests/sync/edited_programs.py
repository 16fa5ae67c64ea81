"""For again_script.py: loops that do more than train. They edit parameters, evaluate, and save what they have."""

import torch
from torch.nn import functional
from torch.utils.data import DataLoader, TensorDataset

import gradtide


def edited_after(model, rule, loader, moment):
    """Edits after each step."""
    for x, y in loader:
        train(model, x, y, moment)
        edit(model, moment)
        moment("end")


def edited_before(model, rule, loader, moment):
    """Edits twice before each second step, and notes each batch when it begins."""
    for x, y in loader:
        model.state["begun"] = model.state.get("begun", 0) + 1
        if loader.place % 2:
            edit(model, moment)
            edit(model, moment)
        train(model, x, y, moment)
        moment("end")
    assert model.state["begun"] % len(loader) == 0


def edited_alone(model, rule, loader, moment):
    """Some batches are for an edit alone; the epoch begins with another, and ends with two."""
    edit(model, moment)
    for x, y in loader:
        if loader.place % 3 == 1:
            edit(model, moment)
        else:
            train(model, x, y, moment)
        moment("end")
    edit(model, moment)
    edit(model, moment)


def loaded(model, rule, loader, moment):
    """The epoch ends with values that are loaded."""
    for x, y in loader:
        train(model, x, y, moment)
        moment("end")
    state = {name: value * 0.9 if value.is_floating_point() else value for name, value in model.state_dict().items()}
    moment("edit")
    model.load_state_dict(state)


def edited_by_main(model, rule, loader, moment):
    """What worker 0 alone makes of the parameters counts."""
    for x, y in loader:
        train(model, x, y, moment)
        with model.edit(), torch.no_grad():
            if gradtide.is_main():
                for parameter in model.parameters():
                    parameter.mul_(0.99)
            moment("edit")
        moment("end")


def evaluated(model, rule, loader, moment):
    """In mid-epoch all evaluate, and one saves what all have."""
    for x, y in loader:
        train(model, x, y, moment)
        if loader.place % 2:
            evaluate(model, moment)
        if gradtide.is_main():
            model.save(rule, loader.place)
        moment("saved")
    evaluate(model, moment)


def evaluated_first(model, rule, loader, moment):
    """Within a batch, before its step."""
    for x, y in loader:
        if loader.place % 2:
            moment("shown")
            evaluate(model, moment)
        train(model, x, y, moment)


def train(model, x, y, moment):
    moment("forward")
    functional.cross_entropy(model(x), y).backward()
    moment("step")
    model.step()


def edit(model, moment):
    with model.edit(), torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(0.99).add_(0.001)
        moment("edit")


def evaluate(model, moment):
    """Over other samples, in an order that is drawn."""
    x = torch.arange(8 * 21, dtype=torch.float64).view(21, 8).sin()
    samples = 0
    model.eval()
    with torch.no_grad():
        for (part,) in model.cut(DataLoader(TensorDataset(x), 5, shuffle=True)):
            moment("evaluate")
            samples += len(model(part))
    model.train()
    moment("mean")
    assert gradtide.mean_over_workers(samples) > 0


PROGRAMS = (edited_after, edited_before, edited_alone, loaded, edited_by_main, evaluated, evaluated_first)
