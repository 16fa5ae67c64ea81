"""Programs that are plain data, run by one process without gradtide or by several with it.

    {"layers": [{}, {"tied": True}], "optimizers": [{"kind": "SGD", "lr": 0.1, "groups": [{"layers": [0, 1, 2]}]}],
     "steps": [{"backwards": [{"size": 5}], "then": [{"do": "clip norm", "by": 0.1}], "step": "optimizers"}]}

What is not said is as plain as can be. Layers are small and square; the last number of a list of layers is the head's,
which is always there. A run gives a trace: what the program saw, in order, and what it was refused with, if it was.
"""

import contextlib
import warnings

import programs
import torch
from random_batches import IGNORED, WIDTH, batches_of, loss_of, terms_of, unpacked, whole_in
from random_layers import make_layer, make_optimizers, place_hook, through
from random_moves import Moves
from torch import nn
from torch.utils.checkpoint import checkpoint

from gradtide.collective import Group
from gradtide.errors import GradtideError
from gradtide.sync import Job, Local, Servers

WAYS = {
    "auto": {},
    "shared": {"share_parameters": True},
    "all-reduce": {"share_parameters": False},
    "ring": {"sync": "ring"},
    "servers": {"sync": "servers"},
    "servers that average": {"sync": "servers", "share_parameters": False},
    "local": {"sync": Local(1)},
    "compressed": {"share_parameters": False, "compress": "topk:1"},
    "lossy": {"share_parameters": False},  # with a codec that the case names: workers are alike, and no more
}
WORKERS_STEP = (
    "all-reduce",
    "ring",
    "servers that average",
    "compressed",
    "lossy",
)  # where .grad is that of all workers after backward


class Net(nn.Module):
    """Layers, of which some are tied, frozen, never used, used in some steps or for some samples, or checkpointed."""

    def __init__(self, case):
        super().__init__()
        self.specs = case.get("layers", [])
        self.layers = nn.ModuleList(make_layer(spec.get("kind")) for spec in [*self.specs, {}])
        for layer, spec in zip(self.layers, self.specs, strict=False):
            if spec.get("tied") is True:
                layer.weight = self.layers[0].weight
            layer.requires_grad_(not spec.get("frozen"))
        self._buffer = case.get("buffer")
        if self._buffer:
            self.register_buffer("mean", torch.ones(WIDTH))

    def tie_data(self):
        """Two parameters with one memory, which a conversion would part."""
        for layer, spec in zip(self.layers, self.specs, strict=False):
            if spec.get("tied") == "data":
                layer.weight.data = self.layers[0].weight.data

    def forward(self, x, step, mask=None):
        """`mask`: the units that dropout leaves, which the program has drawn for all workers."""
        hidden = x
        for layer, spec in zip(self.layers, self.specs, strict=False):
            hidden = self._through(layer, spec, hidden, x, step)
        if mask is not None:
            hidden = hidden * mask * 2
        if self._buffer:
            hidden = hidden * self.mean.clone()  # another forward may come before backward
            self._note()
        return self.layers[-1](hidden)

    def _note(self):
        """Of the parameters, which all workers have alike; not of their own parts."""
        seen = self.layers[-1].weight.detach().mean(0) * 0.1
        if self._buffer == "in place":
            self.mean.mul_(0.9).add_(seen)
        else:
            self.mean = self.mean * 0.9 + seen

    def _through(self, layer, spec, hidden, x, step):
        use, kind = spec.get("use", "always"), spec.get("kind")
        if use == "never" or (use == "even steps" and step % 2):
            return hidden
        if use == "some samples":
            rows = (x[:, 0] > 0.5).nonzero().flatten()
            return hidden.index_add(0, rows, through(layer, kind, hidden[rows], x[rows])) if len(rows) else hidden
        if spec.get("checkpoint"):
            again = spec["checkpoint"] == "reentrant"
            if again and not hidden.requires_grad:  # else it gives its layer no gradient, in plain PyTorch too
                hidden = hidden.detach().requires_grad_(torch.is_grad_enabled())
            return checkpoint(lambda h: through(layer, kind, h, x), hidden, use_reentrant=again)
        return through(layer, kind, hidden, x)


# --- a program ---


class Program(Moves):
    """One run of a program. `trace` is what it has seen so far."""

    def __init__(self, case, around):
        self.case, self.around, self.trace, self.noted = case, around, [], 0
        torch.manual_seed(case.get("seed", 0))
        self.net = Net(case).double()
        self.net.tie_data()
        self.optimizers = make_optimizers(case["optimizers"], self.net)
        early = [hook for hook in case.get("hooks", []) if not hook.get("late")]
        for hook in early:
            place_hook(hook, self.net, self.optimizers, self.note)
        self.model = self.schedulers = None
        self.saved, self.whole = None, True
        self.scaler = torch.amp.GradScaler("cpu", init_scale=64.0) if case.get("scaler") else None
        if case.get("warm"):
            self.warm()
        if around.rank:  # only worker 0's count
            with torch.no_grad():
                for p in [*self.net.parameters(), *self.net.buffers()]:
                    p.fill_(0.5)

    def warm(self):
        """A step before the model is wrapped."""
        x = torch.randn(4, WIDTH, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
        self.net(x, 0).square().mean().backward()
        for optimizer in self.optimizers:
            optimizer.step()
        self.net.zero_grad()

    def run(self):
        case = self.case
        self.wrap()
        for hook in case.get("hooks", []):
            if hook.get("late"):
                place_hook(hook, self.net, self.optimizers, self.note)
        kind = case.get("scheduler", {}).get("kind")
        self.schedulers = [programs.SCHEDULERS[kind](o) for o in self.optimizers] if kind else []
        self.see("begin", *self.parameters())
        steps, epoch = case["steps"], case.get("epoch", len(case["steps"]))
        for first in range(0, len(steps), epoch):
            self.run_epoch(steps[first : first + epoch], first)
        self.see("buffers and calls of a hook", self.noted, *self.net.buffers())
        self.see_aliases()
        self.model.close()
        self.see("end", *self.parameters())
        if case["way"] != "servers" and not self.repointed:
            self.see("state of optimizers", *self.optimizer_state())

    def wrap(self):
        optimizers = self.optimizers if len(self.optimizers) > 1 else self.optimizers[0]
        options = {name: self.case[name] for name in ("clip_norm", "compress") if name in self.case}
        self.model = self.around.wrap(self.net, optimizers, **(options if self.around.job is not None else {}))

    def run_epoch(self, steps, first):
        data = iter(self.around.shard(list(batches_of(self.case, steps, first)), **whole_in(self.case)))
        for number, step in enumerate(steps, first):
            for backward in step["backwards"]:
                self.backward(backward, next(data), number)
                for action in backward.get("then", []):
                    self.between(action, number)
            for action in step.get("then", []):
                self.between(action, number)
            self.step(step.get("step", "optimizers" if self.by_hand else "model"))
            self.after_every_step()
            self.see(f"step {number}", *self.parameters())
            self.schedule("step")
            for action in step.get("after", []):
                self.afterwards(action, number)
        assert next(data, None) is None
        self.schedule("epoch")

    def note(self, *_):
        self.noted += 1

    def see(self, label, *tensors):
        self.trace.append((label, [_plain(torch.as_tensor(t).detach()) for t in tensors]))

    def parameters(self):
        return list(self.net.parameters())

    def optimizer_state(self):
        for optimizer in self.optimizers:
            for _, state in sorted(optimizer.state_dict()["state"].items()):
                yield from (torch.as_tensor(v, dtype=torch.float64) for _, v in sorted(state.items()) if v is not None)

    # --- backward ---

    def backward(self, spec, batch, step):
        x, y, mask = unpacked(self.case, batch)
        self.whole = not spec.get("no_sync")
        with self.model.no_sync() if spec.get("no_sync") else contextlib.nullcontext():
            with torch.autocast("cpu", torch.bfloat16, enabled=self.case.get("autocast", False)):
                loss = self.loss(spec, x, y, step, mask)
            if loss is not None:
                (loss if self.scaler is None else self.scaler.scale(loss)).backward()

    def loss(self, spec, x, y, step, mask):
        kind = spec.get("loss", "mean")
        if kind == "tokens":
            y = torch.where(x[:, 0] > 0, y, IGNORED)
        if kind == "skips":  # a worker with nothing to learn calls neither forward nor backward
            kept = x[:, 0] > 0
            mask = mask[kept] if mask is not None and mask.ndim > 1 else mask
            x, y = x[kept], y[kept]
            self.whole = False  # until the step, for those who skip it
        if kind in ("tokens", "class weights", "skips"):
            self.model.weigh(float(terms_of(kind, y).sum()))
        if kind == "skips" and not len(x):
            return None
        if spec.get("penalty"):
            x = x.clone().requires_grad_()
        outputs = self.model(x, step, mask)
        loss = loss_of(kind, outputs, y)
        if spec.get("penalty"):
            loss = loss + _penalty(kind, outputs, x, y)
        if spec.get("forwards", 1) == 2:
            loss = loss + loss_of(kind, self.model(x * 0.5, step, mask), y)
        if spec.get("decay"):
            loss = loss + 0.01 * sum(p.square().sum() for p in self.net.parameters() if p.requires_grad)
        return loss

    # --- between backward and step ---

    def look(self, label, *tensors):
        """At gradients, where they are promised to be those of all workers."""
        if self.whole and (self.case["workers"] == 1 or self.case["way"] in WORKERS_STEP):
            self.see(label, *tensors)

    def between(self, action, step):
        gradients = [p.grad for p in self.net.parameters() if p.grad is not None]
        match action["do"]:
            case "clip norm":
                self.look("norm", nn.utils.clip_grad_norm_(self.net.parameters(), action["by"]))
            case "clip value" if gradients:
                nn.utils.clip_grad_value_(self.net.parameters(), action["by"])
            case "mask":
                for gradient in gradients:
                    gradient *= torch.arange(gradient.numel()).reshape(gradient.shape) % 2
            case "data":
                for gradient in gradients:
                    gradient.data.mul_(0.5)
            case "replace":
                for p in self.net.parameters():
                    p.grad = None if p.grad is None else p.grad * 0.5
            case "drop":
                self.net.layers[action.get("layer", 0) % len(self.net.layers)].zero_grad()
            case "zero":
                self.net.zero_grad()
            case "synchronise":
                self.whole = True
                if self.around.job is not None:
                    self.model.synchronise()
            case "look":
                self.look("gradients", *gradients)

    def step_scaled(self):
        """One that has nothing to step is no GradScaler's."""
        there = [o for o in self.optimizers if any(p.grad is not None for g in o.param_groups for p in g["params"])]
        for optimizer in there:
            self.scaler.unscale_(optimizer)
        for optimizer in self.optimizers:
            if optimizer in there:
                self.scaler.step(optimizer)
            else:
                optimizer.step()
        if there:
            self.scaler.update()
        self.net.zero_grad()

    def step(self, how):
        if self.scaler is not None:
            self.step_scaled()
            return
        if "clip_norm" in self.case and self.around.job is None and how != "not yet":
            nn.utils.clip_grad_norm_([p for p in self.net.parameters() if p.requires_grad], self.case["clip_norm"])
        if how == "model":
            self.model.step()
        elif how == "each":
            for optimizer in self.optimizers:
                self.model.step(optimizer)
        elif how == "optimizers":
            for optimizer in self.optimizers:
                optimizer.step()
                optimizer.zero_grad()
        elif how == "zeros":
            for optimizer in self.optimizers:
                optimizer.step()
            self.net.zero_grad(set_to_none=False)
            return
        else:
            return  # not in this one: gradients stay
        if not self.case.get("leaves others"):
            self.net.zero_grad()  # what no optimizer has

    def schedule(self, per):
        spec = self.case.get("scheduler")
        if spec and spec.get("per", "step") == per:
            for scheduler in self.schedulers:
                scheduler.step(*([1.0] if spec["kind"] == "ReduceLROnPlateau" else []))
            self.see("rates", *[torch.tensor(g["lr"]) for o in self.optimizers for g in o.param_groups])

    # --- after a step ---

    def afterwards(self, action, step):
        layer = self.net.layers[action.get("layer", 0) % len(self.net.layers)]
        match action["do"]:
            case "shrink":
                with self.model.edit() if action.get("properly") else contextlib.nullcontext(), torch.no_grad():
                    for p in layer.parameters():
                        p.mul_(0.9)
            case "clamp data":
                with self.model.edit() if action.get("properly") else contextlib.nullcontext():
                    layer.weight.data.clamp_(-0.2, 0.2)
            case "validate":
                x = torch.randn(4, WIDTH, dtype=torch.float64, generator=torch.Generator().manual_seed(step))
                self.model.eval()
                with torch.no_grad():
                    self.see("validation", self.model(x, step))
                self.model.train()
            case "unfreeze":
                layer.requires_grad_(True)
            case "freeze" if layer is not self.net.layers[-1]:  # something must be left to train
                layer.requires_grad_(False)
            case "add group":
                self.add_group(layer, action.get("lr", 0.05))
            case "rate":
                self.optimizers[0].param_groups[0]["lr"] = action["lr"]
            case "save" | "load" if self.repointed:
                pass
            case "save":
                self.saved = self.state()
            case "load":
                self.load(action.get("what", "both"))
            case _:
                self.move(action)

    def add_group(self, layer, lr):
        known = {id(p) for o in self.optimizers for group in o.param_groups for p in group["params"]}
        new = [p for p in layer.parameters() if id(p) not in known]
        if new:
            self.optimizers[0].add_param_group({"params": new, "lr": lr})

    def state(self):
        model = {k: v.clone() for k, v in self.model.state_dict().items()}
        return model, [_copied(o.state_dict()) for o in self.optimizers]

    def load(self, what):
        if self.saved is None:
            self.saved = self.state()
        model, optimizers = self.saved
        if what in ("model", "both"):
            self.model.load_state_dict(model)
        if what in ("optimizers", "both"):
            for optimizer, state in zip(self.optimizers, optimizers, strict=True):
                if [len(g["params"]) for g in state["param_groups"]] == [
                    len(g["params"]) for g in optimizer.param_groups
                ]:
                    optimizer.load_state_dict(_copied(state))


def _penalty(kind, outputs, x, y):
    """On how steep the outputs are, as a mean over the same terms as the loss."""
    (slope,) = torch.autograd.grad(outputs.sum(), x, create_graph=True)
    terms = terms_of(kind, y)
    return (slope.square().sum(1) * terms).sum() / terms.sum() if terms.sum() else 0


def _plain(tensor):
    return tensor.to_dense() if tensor.is_sparse else tensor.clone()


def _copied(value):
    if isinstance(value, torch.Tensor):
        return value.clone()
    if isinstance(value, dict):
        return {k: _copied(v) for k, v in value.items()}
    return [_copied(v) for v in value] if isinstance(value, list) else value


# --- who runs them ---


def run_alone(case):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        program = Program(case, programs.Around())
        program.run()
        return program.trace


def run_one(rank, size, name, case, address=None):
    """As one of several workers: the trace, and the refusal or None."""
    options = dict(WAYS[case["way"]])
    if options.get("sync") == "servers":
        options["sync"] = Servers("bsp", address, name=name)
    group = Group.join(name, rank, size, timeout_s=30) if size > 1 else None
    job = Job.of(group) if group else Job()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return _run_together(Program(case, programs.Around(job, options)), group)


def _run_together(program, group):
    try:
        program.run()
        return program.trace, None
    except GradtideError as error:
        return program.trace, f"{type(error).__name__}: {error}"
    finally:
        if program.model is not None:
            with contextlib.suppress(GradtideError):
                program.model._synchroniser.close()
        if group is not None:
            group.close()
