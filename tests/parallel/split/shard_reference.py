"""All shards of a stage in one thread, segment by segment, and how that compares to the model that isn't cut."""

from collections.abc import Sequence

import torch
from torch import nn

from gradtide.parallel.split.cut.dropout import DropoutPlace, SeededDropout
from gradtide.parallel.split.cut.exchanges import exchanged, exchanged_back
from gradtide.parallel.split.cut.local import LocalStage
from gradtide.parallel.split.cut.stage import cut_stage
from gradtide.parallel.split.units import Chain, Unit
from gradtide.schedule.step.layout import Stage


def sequential_chain(*modules: nn.Module) -> Chain:
    names: dict[int, str] = {}
    units = []
    for i, module in enumerate(modules):
        parameters = {n: names.setdefault(id(p), f"{i}.{n}") for n, p in module.named_parameters()}
        buffers = {n: names.setdefault(id(b), f"{i}.{n}") for n, b in module.named_buffers()}
        reads = (f"v{i - 1}",) if i else ("x",)
        units.append(Unit(f"u{i}", module, reads, (f"v{i}",), parameters, buffers))
    return Chain(tuple(units), ("x",), (f"v{len(modules) - 1}",))


def run_units(units: Sequence[Unit], values: dict[str, torch.Tensor], samples: int) -> dict[str, torch.Tensor]:
    """Units as they are in the model, but for dropout's mask."""
    values = dict(values)
    place = DropoutPlace()
    for unit in units:
        place.at(step=4, first=0, samples=samples)
        module = SeededDropout(unit.name, unit.module.p, place) if type(unit.module) is nn.Dropout else unit.module
        made = module(*[values[read] for read in unit.reads])
        values.update(zip(unit.writes, made if isinstance(made, tuple) else (made,), strict=True))
    return values


class AllShards:
    """One copy of a stage: what each shard has of each value, and of its gradient."""

    def __init__(self, chain: Chain, stage: Stage) -> None:
        self.chain, self.shards = chain, stage.shards
        self.stages: list[LocalStage] = [cut_stage(chain, stage, shard) for shard in range(stage.shards)]
        self.kept: list[list[tuple[dict[str, torch.Tensor], dict[str, torch.Tensor]]]] = []

    def forward(self, inputs: dict[str, torch.Tensor], samples: int) -> list[dict[str, torch.Tensor]]:
        for stage in self.stages:
            stage.place.at(step=4, first=0, samples=samples)
        self.values = [dict(inputs) for _ in self.stages]
        self.kept = []
        for number in range(len(self.stages[0].segments)):
            self.exchange(self.stages[0].segments[number].before)
            self.kept.append([self.run(stage, number, self.values[s]) for s, stage in enumerate(self.stages)])
        self.exchange(self.stages[0].after)
        return self.values

    def run(self, stage, number, values):
        segment = stage.segments[number]
        leaves = {}
        for name in segment.reads:
            value = values[name].detach()
            leaves[name] = value.requires_grad_(value.is_floating_point())
        local = dict(leaves)
        for unit in segment.units:
            made = unit.module(*[local[name] for name in unit.reads])
            local.update(zip(unit.writes, made if isinstance(made, tuple) else (made,), strict=True))
        outputs = {name: local[name] for name in segment.writes}
        values.update({name: value.detach() for name, value in outputs.items()})
        return leaves, outputs

    def exchange(self, exchanges):
        for one in exchanges:
            held = [values[one.value] for values in self.values]
            for shard, values in enumerate(self.values):
                values[one.gives] = exchanged(one, shard, held)

    def backward(self, gradients: dict[str, torch.Tensor]) -> list[dict[str, torch.Tensor]]:
        self.gradients = [dict(gradients) for _ in self.stages]
        self.exchange_back(self.stages[0].after)
        for number in reversed(range(len(self.kept))):
            for shard, (leaves, outputs) in enumerate(self.kept[number]):
                found = self.gradients[shard]
                roots = {name: out for name, out in outputs.items() if name in found and out.requires_grad}
                torch.autograd.backward(list(roots.values()), [found[name] for name in roots])
                self.add(shard, {name: leaf.grad for name, leaf in leaves.items() if leaf.grad is not None})
            self.exchange_back(self.stages[0].segments[number].before)
        return self.gradients

    def exchange_back(self, exchanges):
        for one in reversed(exchanges):
            held = [found.pop(one.gives, None) for found in self.gradients]
            if one.has_gradient and held[0] is not None:
                for shard in range(self.shards):
                    self.add(shard, {one.value: exchanged_back(one, shard, held)})

    def add(self, shard: int, gradients: dict[str, torch.Tensor]) -> None:
        found = self.gradients[shard]
        for name, gradient in gradients.items():
            found[name] = found[name] + gradient if name in found else gradient

    def assembled(self, gradients: bool) -> dict[str, torch.Tensor]:
        """The whole model's parameters' gradients, or buffers, put together of all shards' parts, each counted once."""
        found: dict[str, torch.Tensor] = {}
        counted: dict[str, torch.Tensor] = {}
        for stage in self.stages:
            for part in stage.parameters if gradients else stage.buffers:
                if gradients and not part.tensor.requires_grad:
                    continue
                whole = found.setdefault(part.name, torch.zeros(part.shape, dtype=torch.float64))
                count = counted.setdefault(part.name, torch.zeros(part.shape, dtype=torch.int64))
                tensor = part.tensor.grad if gradients else part.tensor
                assert tensor is not None, part.name
                if part.first_shard:
                    whole[part.index] = tensor.double()
                    count[part.index] += 1
                assert torch.allclose(whole[part.index], tensor.double(), rtol=0, atol=1e-12)  # others' are the same
        assert all((count == 1).all() for count in counted.values())
        return found


def leaves_of(values: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    return {name: v.detach().requires_grad_(v.requires_grad) for name, v in values.items()}


def assert_same(chain: Chain, stage: Stage, inputs: dict[str, torch.Tensor]) -> AllShards:
    """What leaves the stage, gradients of what it reads and of parameters, and buffers are the uncut model's."""
    shards = AllShards(chain, stage)
    for unit in chain.units:
        unit.module.zero_grad()
    samples = len(next(iter(inputs.values())))
    inside, after = chain.units[stage.first : stage.last], chain.units[stage.last :]
    entering = leaves_of(run_units(chain.units[: stage.first], inputs, samples))
    made = run_units(inside, entering, samples)
    leaving = leaves_of({k: v for k, v in made.items() if k not in entering})
    ends = run_units(after, {**{k: v.detach() for k, v in entering.items()}, **leaving}, samples)
    torch.manual_seed(7)
    outputs = [ends[name] for name in chain.outputs]
    torch.autograd.backward(outputs, [torch.randn_like(output) for output in outputs])
    gradients = {name: value.grad for name, value in leaving.items() if value.grad is not None}
    torch.autograd.backward([made[name] for name in gradients], list(gradients.values()))

    for values in shards.forward({name: value.detach() for name, value in entering.items()}, samples):
        names = [n for n in leaving if n in chain.outputs or any(n in unit.reads for unit in after)]
        assert_close({name: values[name] for name in names}, {name: made[name] for name in names})
    wanted = {name: value.grad for name, value in entering.items() if value.grad is not None}
    for found in shards.backward(gradients):
        assert_close({name: found[name] for name in wanted}, wanted)
    assert_close(shards.assembled(gradients=True), of_model(inside, gradients=True))
    assert_close(shards.assembled(gradients=False), of_model(inside, gradients=False))
    return shards


def of_model(units: Sequence[Unit], gradients: bool) -> dict[str, torch.Tensor]:
    found = {}
    for unit in units:
        if gradients:
            named = {name: unit.module.get_parameter(n) for n, name in unit.parameters.items()}
            found |= {name: p.grad for name, p in named.items() if p.requires_grad}
        else:
            found |= {name: unit.module.get_buffer(n).double() for n, name in unit.buffers.items()}
    return found


def assert_close(found: dict[str, torch.Tensor], expected: dict[str, torch.Tensor]) -> None:
    assert found.keys() == expected.keys()
    for name, value in expected.items():
        assert found[name].shape == value.shape, name
        torch.testing.assert_close(found[name].detach(), value.detach(), rtol=1e-12, atol=1e-12, msg=name)
