"""What a random program may be refused with, and which programs deserve it."""

import re

from drawn_programs import backwards_of, done_in, kinds_of, losses_of
from random_layers import SPARSE

GRADIENT_EDITS = {"clip norm", "clip value", "mask", "data", "replace", "drop", "zero"}
PARAMETER_EDITS = {"shrink", "clamp data", "load"}


def _edits(case):
    """Gradients, before the step."""
    editing = ("before step", "accumulated")
    return (
        "scaler" in case
        or GRADIENT_EDITS & done_in(case)
        or any(hook["on"] in editing for hook in case.get("hooks", []))
    )


def _keeps(case):
    """Gradients, from one backward to the next."""
    return any(len(step["backwards"]) > 1 or step.get("step") == "not yet" for step in case["steps"])


def _keeps_apart(case):
    return any(backward.get("no_sync") for backward in backwards_of(case))


def _gives_twice(case):
    """One backward gives a gradient twice: of a parameter that is used in a reentrant checkpoint and outside of it."""
    return any(layer.get("checkpoint") == "reentrant" for layer in case.get("layers", []))


def _has_owners(case):
    """One optimizer has all parameters, and nothing else looks at its steps."""
    (rule, *others), count = case["optimizers"], len(case.get("layers", [])) + 1
    owned = {number for group in rule["groups"] for number in group["layers"]}
    return not others and len(owned) == count and "hooks" not in case and "clip_norm" not in case


def _has_memory_twice(case):
    return any(layer.get("tied") == "data" for layer in case.get("layers", []))


# The name, how it is said, and the programs that it is meant for.
REASONS = (
    ("a gradient was edited where no worker has the whole one", "was changed between backward and step", _edits),
    (
        "a gradient was looked at that others have, and this worker has not",
        "had none here when gradients were looked at",
        lambda case: _edits(case) or any(step.get("step") in ("optimizers", "zeros") for step in case["steps"]),
    ),
    (
        "optimizer.step() where no worker has the whole gradient",
        r"call model\.step\(\) instead",
        lambda case: (
            "scaler" in case
            or "new optimizer" in done_in(case)
            or any(step.get("step") in ("optimizers", "zeros") for step in case["steps"])
        ),
    ),
    (
        "state of an optimizer loaded that servers have",
        "the servers hold the optimizer's state",
        lambda case: "load" in done_in(case),
    ),
    (
        "a parameter was edited that servers hold",
        "the servers hold",
        lambda case: PARAMETER_EDITS & done_in(case),
    ),
    (
        "what trains is another, or new, and the servers know nothing of it",
        "the servers know nothing of it|the servers step, with the optimizer|this model is wrapped already",
        lambda case: {"replace layer", "new optimizer", "wrap again", "weight norm", "add group"} & done_in(case),
    ),
    (
        "parameters can't be shared",
        "parameters can't be shared",
        lambda case: not _has_owners(case) or kinds_of(case) & {*SPARSE} or _has_memory_twice(case),
    ),
    (
        "weights that differ within a step, over servers",
        "over servers a step has one weight",
        lambda case: (
            (_keeps(case) or case.get("leaves others")) and {"tokens", "class weights", "skips"} & losses_of(case)
        ),
    ),
    (
        "a gradient was edited before it was whole",
        "was changed before it was synchronised",
        lambda case: _edits(case) and (_keeps_apart(case) or _keeps(case) or _gives_twice(case)),
    ),
    (
        "the servers can't go on stepping",
        "the servers step, and can't go on",
        lambda case: {"unfreeze", "add group"} & done_in(case) or "hooks" in case,
    ),
    (
        "a second backward where the first has left for servers",
        "got a gradient twice before",
        lambda case: _keeps(case) or _gives_twice(case),
    ),
    (
        "a layer was frozen that had a gradient of one worker's",
        "was frozen when it had a gradient",
        lambda case: "freeze" in done_in(case) and _keeps(case),
    ),
    (
        "layers were frozen or added between a backward and its step, over servers",
        "gradients have left for this step already",
        lambda case: {"freeze", "unfreeze", "add group"} & done_in(case) and _keeps(case),
    ),
    (
        "model.synchronise() where no worker has the whole gradient",
        "ever has the whole gradient",
        lambda case: "synchronise" in done_in(case),
    ),
    (
        "a gradient was edited that a worker gives at the step",
        "was changed after backward, but on another worker",
        lambda case: _edits(case) and (_keeps_apart(case) or "skips" in losses_of(case)),
    ),
)


def reason_of(case, refusals):
    """By name, on one line, and for what the program does."""
    for refusal in refusals:
        assert "\n" not in refusal, f"a refusal is one line: {refusal}"
    for name, pattern, deserved in REASONS:
        if any(refusal.startswith("ConfigError") and re.search(pattern, refusal) for refusal in refusals):
            assert deserved(case), f"refused for what it does not do: {refusals}"
            return name
    raise AssertionError(f"refused, but not by a reason that is listed: {refusals}")
