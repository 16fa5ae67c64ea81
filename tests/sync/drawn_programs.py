"""What random programs are drawn from, by Hypothesis; and the words for what one is made of, to be counted."""

import programs
import random_programs
from hypothesis import strategies as st
from random_layers import KINDS, LOOSE, SPARSE
from random_moves import MOVES, NOT_OVER_SERVERS, NOT_YET, can_be_drawn


def _said(**options):
    """What is not plain."""
    return {k: v for k, v in options.items() if v not in (None, False, [], {})}


def sometimes(strategy, weight=3):
    """Nothing, most of the time. (one_of would forget that it was given the same several times.)"""
    return st.sampled_from([False] * weight + [True]).flatmap(lambda yes: strategy if yes else st.none())


layers = st.builds(
    _said,
    tied=st.integers(0, 5).map(lambda n: n == 5),
    frozen=st.integers(0, 4).map(lambda n: n == 4),
    use=sometimes(st.sampled_from(["never", "even steps", "some samples"]), 2),
    checkpoint=sometimes(st.sampled_from(["plain", "reentrant"])),
    kind=sometimes(st.sampled_from(KINDS), 1),
)
rates = st.sampled_from([0.1, 0.05, 0.02])
OPTIMIZERS = [
    {"kind": "SGD"},
    {"kind": "SGD", "momentum": 0.9},
    {"kind": "SGD", "momentum": 0.9, "nesterov": True, "weight_decay": 0.1},
    {"kind": "SGD", "weight_decay": 0.1, "momentum": 0.5, "dampening": 0.1},
    {"kind": "Adam"},
    {"kind": "Adam", "amsgrad": True},
    {"kind": "AdamW", "weight_decay": 0.1},
    {"kind": "Adagrad", "eps": 1e-6},
    {"kind": "RMSprop", "eps": 1e-6, "momentum": 0.5},
]
LOSSES = ("scaled sum", "squares", "tokens", "class weights", "skips")  # beside a mean over samples
backwards = st.builds(
    lambda then, **rest: _said(**rest, then=[then] if then else []),
    then=sometimes(st.sampled_from([{"do": "clip value", "by": 0.05}, {"do": "zero"}, {"do": "data"}]), 15),
    size=st.integers(1, 8),
    loss=sometimes(st.sampled_from(LOSSES), 2),
    no_sync=st.integers(0, 3).map(lambda n: n == 3),
    forwards=sometimes(st.just(2), 5),
    penalty=st.integers(0, 5).map(lambda n: n == 5),
    decay=st.integers(0, 5).map(lambda n: n == 5),
)
edits_between = st.one_of(
    st.just({"do": "look"}),
    st.builds(lambda by: {"do": "clip norm", "by": by}, st.sampled_from([0.01, 0.2])),
    st.builds(lambda by: {"do": "clip value", "by": by}, st.sampled_from([0.001, 0.05])),
    st.sampled_from([{"do": "mask"}, {"do": "data"}, {"do": "replace"}, {"do": "drop"}, {"do": "synchronise"}]),
)
numbers = st.integers(0, 3)
afterwards = st.one_of(
    st.just({"do": "validate"}),
    st.builds(lambda layer, p: _said(do="shrink", layer=layer, properly=p), numbers, st.booleans()),
    st.builds(lambda layer, p: _said(do="clamp data", layer=layer, properly=p), numbers, st.booleans()),
    st.builds(lambda layer: _said(do="unfreeze", layer=layer), numbers),
    st.builds(lambda layer: _said(do="freeze", layer=layer), numbers),
    st.builds(lambda layer: _said(do="add group", layer=layer), numbers),
    st.builds(lambda lr: {"do": "rate", "lr": lr}, rates),
    st.just({"do": "save"}),
    st.builds(lambda what: {"do": "load", "what": what}, st.sampled_from(["model", "optimizers", "both"])),
)
if can_be_drawn():
    moves = st.builds(lambda move, layer: _said(do=move, layer=layer), st.sampled_from(can_be_drawn()), numbers)
    edits_after = afterwards
    afterwards = st.integers(0, 2).flatmap(lambda n: moves if n == 2 else edits_after)
CODECS = ["fp16", "bf16", "int8", "topk:0.3", "powersgd:1", "onebit"]  # which leave something out, or round
HOOKS = ["gradient", "forward", "module", "accumulated", "before step", "after step"]


def hooks(simple):
    """The last three edit gradients, or belong to a step of a worker's own: nothing where parameters are shared."""
    kinds = st.sampled_from(HOOKS[:-3] if simple else HOOKS)
    return st.lists(st.builds(_said, on=kinds, layer=numbers, late=st.booleans()), min_size=1, max_size=2)


@st.composite
def optimizers(draw, count, several):
    """Who steps which layer: some of them nobody."""
    who = [0, 0, 0, 1, 1, None] if several else [0]
    owners = draw(st.lists(st.sampled_from(who), min_size=count, max_size=count))
    owners[-1] = 0
    found = []
    for owner in (0, 1):
        mine = [number for number, by in enumerate(owners) if by == owner]
        if mine:
            cut = draw(st.integers(0, len(mine) - 1)) if draw(st.integers(0, 2)) == 2 else 0
            groups = [{"layers": mine[cut:]}]
            if cut:
                groups.append({"layers": mine[:cut], "lr": draw(rates)})
            found.append({**draw(st.sampled_from(OPTIMIZERS)), "lr": draw(rates), "groups": groups})
    return found


@st.composite
def steps(draw, edits):
    """`edits`: whether this program edits anything between its steps."""
    parts = draw(st.lists(backwards, min_size=1, max_size=3) if draw(st.integers(0, 2)) == 2 else st.tuples(backwards))
    then = draw(st.lists(edits_between, max_size=2)) if edits and draw(st.integers(0, 2)) == 2 else []
    if then and draw(st.integers(0, 9)) < 9:
        parts[-1].pop("no_sync", None)
    return _said(
        backwards=list(parts),
        then=then,
        step=draw(st.sampled_from([None, "optimizers", "each", "zeros", "not yet"]))
        if edits and draw(st.integers(0, 2)) == 2
        else None,
        after=draw(st.lists(afterwards, max_size=2)) if draw(st.integers(0, 2)) == 2 else [],
    )


@st.composite
def cases(draw, way):
    made = _layers(draw(st.lists(layers, max_size=3)), draw, way)
    workers_step = way in random_programs.WORKERS_STEP
    edits = workers_step or draw(st.integers(0, 31 if way == "servers" else 15)) == 15
    simple = way in ("auto", "shared", "servers") and draw(st.integers(0, 7)) < 7  # else they can't be shared
    rules = draw(optimizers(len(made) + 1, not simple))
    schedule = draw(sometimes(st.sampled_from(schedulers_for(rules)), 2))
    case = _said(
        way=way,
        workers=draw(st.sampled_from([2, 3, 2, 1])),
        seed=draw(st.integers(0, 3)),
        layers=made,
        buffer=draw(sometimes(st.sampled_from(["in place", "reassigned"]), 2)),
        optimizers=rules,
        clip_norm=None if simple else draw(sometimes(st.sampled_from([0.05, 0.5]), 8)),
        scheduler=_said(kind=schedule, per=draw(st.sampled_from([None, "epoch"]))) if schedule else None,
        hooks=draw(sometimes(hooks(simple), 4)),
        warm=draw(st.integers(0, 9)) == 9,
        batch=draw(sometimes(st.sampled_from(["dict", "nested", "strings"]), 2)),
        masks=draw(sometimes(st.sampled_from(["a sample", "a batch"]), 3)),
        epoch=draw(sometimes(st.integers(1, 3), 2)),
        steps=draw(st.lists(steps(edits), min_size=5 if way == "auto" and simple else 1, max_size=6)),
    )
    if any(layer.get("checkpoint") == "reentrant" for layer in made):  # which forbids autograd.grad
        for step in case["steps"]:
            for backward in step["backwards"]:
                backward.pop("penalty", None)
    if "clip_norm" in case:  # which of two clippings comes first shows in the tenth digit
        case["hooks"] = [hook for hook in case.get("hooks", []) if hook["on"] != "before step"]
    if "leave others" not in NOT_YET and draw(st.integers(0, 5)) == 5:
        case["leaves others"] = True
    if (workers_step or way == "local") and draw(st.integers(0, 4)) == 4:
        _scale(case)
    if draw(st.integers(0, 4)) == 4:
        case["autocast"] = True  # which leaves float64 alone
    _suit(case, draw)
    if schedule in FIXED_GROUPS:
        _drop(case["steps"], lambda action: action["do"] == "add group")
    _keep_in_step(case["steps"], "buffer" in case)
    if way.startswith("servers") and draw(st.integers(0, 9)):  # which refuse them: now and then is enough
        _drop(case["steps"], lambda action: action["do"] in NOT_OVER_SERVERS)
    if way == "servers" and draw(st.integers(0, 5)):  # which hold what is edited or loaded
        _drop(case["steps"], lambda action: action["do"] in ("shrink", "load") and not action.get("properly"))
    if not workers_step:
        # What is changed through .data is looked for with a net, not a proof, where workers may not change it.
        _drop(case["steps"], lambda action: action["do"] in ("data", "clamp data") and not action.get("properly"))
    return _said(**case)


def _layers(made, draw, way):
    """Only plain ones can be tied."""
    for number, layer in enumerate(made):
        if layer.get("tied") and (not number or "kind" in layer or "kind" in made[0]):
            layer.pop("tied")
        elif layer.get("tied") and "tie data" not in NOT_YET and draw(st.booleans()):
            layer["tied"] = "data"
        if way == "shared" and layer.get("kind") in SPARSE and draw(st.integers(0, 4)):  # which can't be
            layer.pop("kind")
        if way == "lossy" and draw(st.booleans()) and not layer.get("tied"):
            made[number] = {"kind": draw(st.sampled_from(LOOSE))}
    return made


def _scale(case):
    """With a GradScaler: what is between backward and step would be of scaled gradients."""
    case["scaler"] = True
    case.pop("clip_norm", None)
    case["hooks"] = [hook for hook in case.get("hooks", []) if hook["on"] not in ("before step", "accumulated")]
    for step in case["steps"]:
        step.pop("step", None)
        for place in (step, *step["backwards"]):
            place.pop("then", None)
        for backward in step["backwards"]:  # to unscale a gradient is to edit it
            backward.pop("loss", None) if backward.get("loss") == "skips" else None


def _suit(case, draw):
    """What plain PyTorch forbids for some layers, and what is promised of some ways alone."""
    kinds = {layer.get("kind") for layer in case.get("layers", [])}
    if kinds & {*SPARSE}:
        _suit_sparse(case)
    if case["way"].startswith("servers") and draw(st.integers(0, 11)):  # where a step has one weight
        for step in case["steps"]:
            for backward in step["backwards"] if _keeps(case) else ():
                if backward.get("loss") in ("tokens", "class weights", "skips"):
                    backward.pop("loss")
    if case["way"] == "local":
        _suit_local(case)
    if case["way"] == "lossy":
        case["compress"] = draw(st.sampled_from(CODECS[:-1] if _looks_at_sizes(case) else CODECS))
        if kinds & {*LOOSE}:
            for step in case["steps"]:
                step.pop("step", None) if step.get("step") == "not yet" else None
                for backward in step["backwards"]:
                    backward["size"] += 5  # two samples for each of three workers
                    backward.pop("no_sync", None)
                    backward.pop("loss", None) if backward.get("loss") == "skips" else None


def _keeps(case):
    return any(len(step["backwards"]) > 1 or step.get("step") == "not yet" for step in case["steps"])


def _looks_at_sizes(case):
    return any(rule["kind"].startswith("Adam") for rule in case["optimizers"])


def _suit_sparse(case):
    """Sparse gradients: few optimizers take them, and nothing edits them."""
    for rule in case["optimizers"]:
        for name in {*rule} - {"lr", "groups"}:
            rule.pop(name)
        rule["kind"] = "SGD"
    for name in ("clip_norm", "hooks", "scaler"):
        case.pop(name, None)
    if case.get("scheduler", {}).get("kind") in ("CyclicLR", "OneCycleLR"):
        case.pop("scheduler")
    for layer in case["layers"]:
        if layer.get("kind") in SPARSE:
            layer.pop("checkpoint", None)
    for step in case["steps"]:
        if step.get("step") == "zeros":
            step.pop("step")
        for place in (step, *step["backwards"]):
            if "then" in place:
                place["then"] = [action for action in place["then"] if action["do"] in ("drop", "synchronise")]
        for backward in step["backwards"]:
            backward.pop("penalty", None)
            backward.pop("decay", None)


def _suit_local(case):
    """Local(1) is one process with plain SGD, one backward a step, and losses whose terms everybody has."""
    case["optimizers"] = [
        {"kind": "SGD", "lr": rule["lr"], "groups": rule["groups"]} for rule in case["optimizers"][:1]
    ]
    case.pop("clip_norm", None)
    if case.get("scheduler", {}).get("kind") in ("CyclicLR", "OneCycleLR"):
        case.pop("scheduler")
    case["hooks"] = [h for h in case.get("hooks", []) if h["on"] in ("gradient", "forward", "module")]
    for step in case["steps"]:
        step.pop("step", None)
        step.pop("then", None)
        del step["backwards"][1:]
        for backward in step["backwards"]:
            for name in ("then", "no_sync", *(["loss"] if backward.get("loss") in ("tokens", "skips") else [])):
                backward.pop(name, None)


def _keep_in_step(made, with_buffer):
    """A worker that skips a backward gives its part at the step, so that there must be no other before it, nor may the
    step be the first of an optimizer that nobody knows; and if it is worker 0, its buffer, which is everybody's, has
    not seen that batch."""
    for before, step in zip([{}, *made], made, strict=False):
        made_one = any(action["do"] == "new optimizer" for action in before.get("after", []))
        several = len(step["backwards"]) > 1 or "not yet" in (step.get("step"), before.get("step"))
        if with_buffer or several or made_one:
            for backward in step["backwards"]:
                if backward.get("loss") == "skips":
                    backward["loss"] = "tokens"


def _drop(made, forbidden):
    for step in made:
        for place in (step, *step["backwards"]):
            for name in set(place) & {"then", "after"}:
                place[name] = [action for action in place[name] if not forbidden(action)]


# Those that torch gives no rate for a group that was added later.
FIXED_GROUPS = (
    "LambdaLR",
    "MultiplicativeLR",
    "CosineAnnealingLR",
    "CosineAnnealingWarmRestarts",
    "OneCycleLR",
    "CyclicLR",
    "SequentialLR",
    "SWALR",
)


def schedulers_for(rules):
    """Those that turn momentum too need some."""
    cycles = all("momentum" in rule or rule["kind"].startswith("Adam") for rule in rules)
    return [kind for kind in programs.SCHEDULERS if cycles or kind not in ("CyclicLR", "OneCycleLR")]


# --- what was drawn ---

WORDS = {
    "tied parameters": lambda case: _some_layer(case, "tied"),
    "frozen parameters": lambda case: _some_layer(case, "frozen"),
    "unused parameters": lambda case: _some_layer(case, "use"),
    "late parameters": lambda case: {"unfreeze", "add group"} & done_in(case),
    "buffers": lambda case: "buffer" in case,
    "several optimizers": lambda case: len(case["optimizers"]) > 1,
    "several groups": lambda case: any(len(rule["groups"]) > 1 for rule in case["optimizers"]),
    "masks given": lambda case: "masks" in case,
    "nested batches": lambda case: case.get("batch") == "nested",
    "accumulation": lambda case: any(len(step["backwards"]) > 1 for step in case["steps"]),
    "no_sync": lambda case: any(backward.get("no_sync") for backward in backwards_of(case)),
    "clipping": lambda case: {"clip norm", "clip value"} & done_in(case) or "clip_norm" in case,
    "uneven parts": lambda case: any(backward["size"] % case["workers"] for backward in backwards_of(case)),
    **{f"loss: {kind}": lambda case, kind=kind: kind in losses_of(case) for kind in (*LOSSES, "mean")},
    "schedulers a step": lambda case: "scheduler" in case and "per" not in case["scheduler"],
    "schedulers an epoch": lambda case: case.get("scheduler", {}).get("per") == "epoch",
    "hooks": lambda case: "hooks" in case,
    **{kind: lambda case, kind=kind: kind in kinds_of(case) for kind in KINDS},
    "GradScaler": lambda case: "scaler" in case,
    "autocast": lambda case: "autocast" in case,
    **{move: lambda case, move=move: move in done_in(case) for move in MOVES if move not in NOT_YET},
    **{f"{count} workers": lambda case, count=count: case["workers"] == count for count in (1, 2, 3)},
}


def words_of(case):
    return [word for word, has in WORDS.items() if has(case)]


def _some_layer(case, name):
    return any(layer.get(name) for layer in case.get("layers", []))


def kinds_of(case):
    return {layer.get("kind") for layer in case.get("layers", [])}


def backwards_of(case):
    return [backward for step in case["steps"] for backward in step["backwards"]]


def losses_of(case):
    return {backward.get("loss", "mean") for backward in backwards_of(case)}


def done_in(case):
    """The names of what is done between, and after, steps."""
    places = [*case["steps"], *backwards_of(case)]
    return {action["do"] for place in places for name in ("then", "after") for action in place.get(name, [])}
