"""Programs that change their model or its optimizers in mid-training, as `programs` has those that do not.

Each changes after its fifth step, when `auto` shares parameters; some step with optimizer.step() from then on.
New layers begin with other numbers on each worker: worker 0's are everybody's.
"""

import gc
from unittest import mock

import local_programs
import programs
import torch
from programs import batches, net, results, sgd
from torch import nn
from torch.nn import functional
from torch.nn.utils import parametrizations, parametrize

from gradtide.sync.synchroniser import Synchroniser
from gradtide.sync.trained import Trained

STEPS, AT = 11, 5


def run(rank, size, name, program, options):
    programs.SPECIAL.update(CHANGED)
    return programs.run(rank, size, name, program, options)


def run_unmended(rank, size, name, program, options):
    """With nothing that follows a program's changes but what notices parameters that are frozen."""

    def is_outdated(trained):
        return [p.requires_grad for _, p in trained.everything] != [asked[0] for asked in trained._signature[0]]

    with (
        mock.patch.object(Trained, "is_outdated", is_outdated),
        mock.patch.object(Trained, "is_rearranged", return_value=False),
        mock.patch.object(Synchroniser, "_before_stranger"),
        mock.patch.object(Synchroniser, "_have_others_let_go"),
    ):
        return run(rank, size, name, program, options)


def alone(program):
    programs.SPECIAL.update(CHANGED)
    return programs.alone(program)


class Loop:
    """A program's model, what it is wrapped in, and the optimizer that it steps by hand, if it does."""

    def __init__(self, around, model, rule, **options):
        self.around, self.model, self.rule = around, model, rule
        self.wrapped, self.by_hand = around.wrap(model, rule, **options), False

    def new(self, make, *arguments, **named):
        torch.manual_seed(70 + self.around.rank)
        return make(*arguments, **named).double()

    def new_rule(self, **options):
        self.rule = torch.optim.SGD(self.model.parameters(), **{"lr": 0.05, "momentum": 0.9, **options})

    def again(self, **options):
        """Steps by hand from now on, with a new optimizer."""
        self.new_rule(**options)
        self.by_hand = True

    def point(self):
        self.rule.param_groups[0]["params"] = list(self.model.parameters())

    def train(self, x, y, loss=functional.cross_entropy):
        loss(self.wrapped(x), y).backward()
        if self.by_hand:
            self.rule.step()
            self.rule.zero_grad()
        else:
            self.wrapped.step()


def _changed(around, change, make=net, optimizer=sgd, steps=STEPS, at=AT, close=True, data=None, **options):
    model = make()
    loop = Loop(around, model, optimizer(model), **options)
    for step, (x, y) in enumerate(around.shard(batches(steps) if data is None else data)):
        if step == at:
            change(loop)
        loop.train(x, y)
    if close:
        loop.wrapped.close()
    return results(loop.model)


# --- other parameters ---


def _replace(loop):
    loop.model[4] = loop.new(nn.Linear, 8, 3)


def replaced_and_pointed_to(around):
    def change(loop):
        _replace(loop)
        loop.point()

    return _changed(around, change)


def replaced_with_a_new_optimizer(around):
    def change(loop):
        _replace(loop)
        loop.again()

    return _changed(around, change)


def replaced_whole_with_a_new_optimizer(around):
    def change(loop):
        for place in (0, 2, 4):
            loop.model[place] = loop.new(nn.Linear, loop.model[place].in_features, loop.model[place].out_features)
        loop.again()

    return _changed(around, change)


def replaced_and_given_to_the_wrapper(around):
    def change(loop):
        _replace(loop)
        loop.new_rule()
        if around.job is None:
            loop.wrapped._optimizers = [loop.rule]
        else:
            loop.wrapped.optimizer = loop.rule

    return _changed(around, change)


def replaced_and_added(around):
    """The old layer's parameters stay in the first group."""

    def change(loop):
        _replace(loop)
        loop.rule.add_param_group({"params": list(loop.model[4].parameters()), "lr": 0.02})

    return _changed(around, change)


def replaced_in_the_middle_of_a_step(around):
    """Between backward and step: the new layer's first gradient is the next step's."""
    model = net()
    loop = Loop(around, model, sgd(model))
    for step, (x, y) in enumerate(around.shard(batches(STEPS))):
        functional.cross_entropy(loop.wrapped(x), y).backward()
        if step == AT:
            _replace(loop)
            loop.point()
        loop.wrapped.step()
    loop.wrapped.close()
    return results(model)


def grown(around):
    """A layer with more inputs is put in, which keeps what the old one had learnt."""

    def change(loop):
        old, wider = loop.model[2], loop.new(nn.Linear, 8, 11)
        with torch.no_grad():
            wider.weight[:8], wider.bias[:8] = old.weight, old.bias
        loop.model[2], loop.model[4] = wider, loop.new(nn.Linear, 11, 3)
        loop.point()

    return _changed(around, change)


class Embeds(nn.Module):
    def __init__(self):
        super().__init__()
        self.table, self.last = nn.Embedding(6, 4), nn.Linear(4, 3)

    def forward(self, x):
        return self.last(self.table((x[:, :2].abs() * 4).long().clamp_(max=self.table.num_embeddings - 1)).sum(1))


def grown_embedding(around):
    def make():
        torch.manual_seed(3)
        return Embeds().double()

    def change(loop):
        table = loop.new(nn.Embedding, 11, 4)
        with torch.no_grad():
            table.weight[:6] = loop.model.table.weight
        loop.model.table = table
        loop.point()

    return _changed(around, change, make)


def grown_by_data(around):
    """The same parameter, with another shape."""

    def make():
        torch.manual_seed(3)
        return Embeds().double()

    def change(loop):
        table = loop.model.table
        table.weight.data = torch.cat([table.weight.data, torch.ones(5, 4, dtype=torch.float64)])
        table.num_embeddings = 11

    return _changed(around, change, make, lambda model: torch.optim.SGD(model.parameters(), lr=0.1))


class Scaled(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = net()

    def forward(self, x):
        return self.inner(x) * getattr(self, "scale", 1.0)


def put_into_a_group(around):
    """A parameter that is new to the model comes into a group that is there."""

    def change(loop):
        loop.model.scale = nn.Parameter(torch.full((3,), 1.0 + around.rank, dtype=torch.float64))
        loop.rule.param_groups[0]["params"].append(loop.model.scale)

    return _changed(around, change, Scaled)


def replaced_with_its_state(around):
    """What the optimizer has learnt of the old parameter goes on with the new one."""

    def change(loop):
        old = loop.model[4].weight
        loop.model[4].weight = nn.Parameter(old.detach() * 0.5)
        loop.rule.state[loop.model[4].weight] = loop.rule.state.pop(old)
        loop.point()

    return _changed(around, change)


def assigned(around):
    """load_state_dict(assign=True) puts other parameters in their places."""

    def change(loop):
        state = {name: value.detach().clone() * 0.9 for name, value in loop.model.state_dict().items()}
        loop.model.load_state_dict(state, assign=True)
        loop.again()

    return _changed(around, change)


def assigned_by_the_wrapper(around):
    def change(loop):
        state = {name: value.detach().clone() * 0.9 for name, value in loop.model.state_dict().items()}
        loop.wrapped.load_state_dict(state, assign=True)
        loop.point()

    return _changed(around, change)


def swapped(around):
    """The same Python object, with another tensor in it, that has none of the hooks."""

    def change(loop):
        torch.utils.swap_tensors(loop.model[0].weight, nn.Parameter(loop.model[0].weight.detach() * 0.9))

    return _changed(around, change)


def frozen_before_a_step(around):
    """Between backward and the step with which sharing begins: it is stepped all the same, and thawed afterwards."""
    model = net()
    wrapped = around.wrap(model, sgd(model))
    for x, y in around.shard(batches(STEPS)):
        functional.cross_entropy(wrapped(x), y).backward()
        model[0].requires_grad_(False)
        wrapped.step()
        model[0].requires_grad_(True)
    wrapped.close()
    return results(model)


def critic_frozen_whole(around):
    """For the generator's steps, as CycleGAN does it."""
    torch.manual_seed(2)
    generator, critic = (nn.Sequential(nn.Linear(5, 8), nn.Tanh(), nn.Linear(8, out)).double() for out in (5, 1))
    makes, judges = (around.wrap(model, torch.optim.SGD(model.parameters(), lr=0.1)) for model in (generator, critic))
    for x, _ in around.shard(batches(STEPS)):
        critic.requires_grad_(True)
        (judges(x).square().mean() + (judges(makes(x).detach()) - 1).square().mean()).backward()
        judges.step()
        critic.requires_grad_(False)
        judges(makes(x)).square().mean().backward()
        makes.step()
    makes.close()
    judges.close()
    return [*results(generator), *results(critic)]


def clipped_and_complex(around):
    class Waves(nn.Module):
        def __init__(self):
            super().__init__()
            torch.manual_seed(1)
            self.waves = nn.Parameter(torch.randn(5, 3, dtype=torch.complex128))

        def forward(self, x):
            return (x.to(torch.complex128) @ self.waves).abs()

    model = Waves()
    wrapped = around.wrap(model, sgd(model), **({"clip_norm": 1e9} if around.job else {}))
    for x, y in around.shard(batches(STEPS)):
        functional.cross_entropy(wrapped(x), y).backward()
        wrapped.step()
    wrapped.close()
    return [torch.view_as_real(model.waves.detach())]


def weight_normed(around):
    def change(loop):
        nn.utils.weight_norm(loop.model[2])
        loop.point()

    return _changed(around, change)


class Doubled(nn.Module):
    def forward(self, x):
        return x * 2

    def right_inverse(self, x):
        return x / 2


def parametrized(around):
    def change(loop):
        parametrize.register_parametrization(loop.model[2], "weight", Doubled())
        loop.point()

    return _changed(around, change)


class Symmetric(nn.Module):
    def forward(self, x):
        return x.triu() + x.triu(1).transpose(-1, -2)


def parametrized_as_it_is(around):
    """Without an inverse: torch sets the parameter to itself."""

    def change(loop):
        parametrize.register_parametrization(loop.model[2], "weight", Symmetric())
        loop.point()

    return _changed(around, change)


def parametrized_for_a_while(around):
    model = net()
    loop = Loop(around, model, sgd(model))
    for step, (x, y) in enumerate(around.shard(batches(STEPS + 5))):
        if step == AT:
            parametrize.register_parametrization(model[2], "weight", Doubled())
        if step == STEPS:
            parametrize.remove_parametrizations(model[2], "weight")
        loop.train(x, y)
    loop.wrapped.close()
    return results(model)


def weight_parametrized(around):
    def change(loop):
        parametrizations.weight_norm(loop.model[0])
        loop.again()

    return _changed(around, change)


def grown_by_a_layer(around):
    def change(loop):
        loop.model.append(loop.new(nn.Linear, 3, 3))
        loop.rule.add_param_group({"params": list(loop.model[5].parameters())})

    return _changed(around, change)


def cut_off(around):
    """A layer that is taken out, and put back later."""
    model = net()
    loop = Loop(around, model, sgd(model))
    for step, (x, y) in enumerate(around.shard(batches(STEPS))):
        if step == AT:
            taken, model[2] = model[2], nn.Identity()
        if step == AT + 2:
            model[2] = taken
        loop.train(x, y)
    loop.wrapped.close()
    return results(model)


# --- other optimizers, other groups ---


def new_optimizer(around):
    return _changed(around, lambda loop: loop.again(lr=0.02))


def new_optimizer_given_to_step(around):
    def change(loop):
        loop.new_rule(lr=0.02)
        step = loop.wrapped.step
        loop.wrapped.step = lambda: step(loop.rule)

    return _changed(around, change)


def two_optimizers_in_turns(around):
    """Both have all parameters; the second one comes as a surprise."""

    def change(loop):
        first = loop.rule
        loop.again(lr=0.02)
        second = loop.rule

        class Both:
            step_count = 0

            def step(self):
                self.step_count += 1
                (first if self.step_count % 2 else second).step()

            def zero_grad(self):
                first.zero_grad()

        loop.rule = Both()

    return _changed(around, change)


def _second_optimizer(around, make, frozen=False):
    """It steps after the first one, with the same gradient."""
    model, second = net(), None
    model[:4].requires_grad_(not frozen)
    first = sgd(model)
    wrapped = around.wrap(model, first)
    for step, (x, y) in enumerate(around.shard(batches(STEPS))):
        if step == AT:
            second = make(model, first)
        functional.cross_entropy(wrapped(x), y).backward()
        first.step()
        if second is not None:
            second.step()
        model.zero_grad()
    wrapped.close()
    return results(model)


def second_optimizer_of_a_part(around):
    def make(model, first):
        first.param_groups[0]["params"] = list(model[:4].parameters())
        return sgd(model[4], 0.02)

    return _second_optimizer(around, make)


def second_optimizer_of_the_same(around):
    return _second_optimizer(around, lambda model, first: sgd(model[4], 0.02))


def second_optimizer_of_what_is_thawed(around):
    def make(model, first):
        model[:4].requires_grad_(True)
        return sgd(model[:4], 0.02)

    return _second_optimizer(around, make, frozen=True)


def sharpness_aware(around):
    return local_programs.sharpness_aware(around)


def sharpness_aware_by_a_closure(around):
    return local_programs.sharpness_aware_by_a_closure(around)


def reordered_groups(around):
    def optimizer(model):
        return torch.optim.SGD(
            [{"params": model[place].parameters(), "lr": rate} for place, rate in ((0, 0.3), (2, 0.01), (4, 0.1))],
            momentum=0.9,
        )

    return _changed(around, lambda loop: loop.rule.param_groups.reverse(), optimizer=optimizer)


def parameters_moved_between_groups(around):
    def optimizer(model):
        groups = [
            {"params": list(model[:4].parameters()), "lr": 0.2},
            {"params": list(model[4:].parameters()), "lr": 0.01},
        ]
        return torch.optim.Adam(groups, lr=0.1)

    def change(loop):
        first, second = loop.rule.param_groups
        first["params"], second["params"] = second["params"], first["params"]

    return _changed(around, change, optimizer=optimizer)


# --- wrapped again ---


def wrapped_again(around):
    def change(loop):
        loop.new_rule()
        loop.wrapped = around.wrap(loop.model, loop.rule)

    return _changed(around, change)


def wrapped_again_by_the_same_optimizer(around):
    def change(loop):
        loop.wrapped = around.wrap(loop.model, loop.rule)

    return _changed(around, change)


def dropped_and_wrapped_again(around):
    def change(loop):
        loop.wrapped = None
        loop.new_rule()
        gc.collect()
        loop.wrapped = around.wrap(loop.model, loop.rule)

    return _changed(around, change)


def wrapped_as_a_part(around):
    """The model becomes a part of a larger one."""

    def change(loop):
        loop.model = nn.Sequential(loop.model, loop.new(nn.Linear, 3, 3))
        loop.new_rule()
        loop.wrapped = around.wrap(loop.model, loop.rule)

    return _changed(around, change)


def old_wrapper_used(around):
    def change(loop):
        around.wrap(loop.model, sgd(loop.model))

    return _changed(around, change, at=2)


def closed_wrapper_used(around):
    def change(loop):
        loop.wrapped.close()

    return _changed(around, change, at=2)


# --- gradients of what no optimizer has ---


def gradients_in_no_optimizer_stay(around):
    """model.step() clears what optimizer.zero_grad() does, and no more."""
    model, seen = net(), []
    rule = torch.optim.SGD(model[4].parameters(), lr=0.1)
    wrapped = around.wrap(model, rule)
    for x, y in around.shard(batches()):
        functional.cross_entropy(wrapped(x), y).backward()
        wrapped.step()
        seen.append(model[0].weight.grad.clone())
    wrapped.close()
    return [*results(model), *seen]


def merged_and_added_later(around):
    """Gradients add up in a layer until it is merged by hand, and then an optimizer has it."""
    model = net()
    rule = torch.optim.SGD(model[2:].parameters(), lr=0.1)
    wrapped = around.wrap(model, rule)
    for step, (x, y) in enumerate(around.shard(batches(10))):
        if step == 4:
            with torch.no_grad():
                for p in model[0].parameters():
                    p -= 0.05 * p.grad
        if step == 6:
            rule.add_param_group({"params": list(model[0].parameters()), "lr": 0.05})
        functional.cross_entropy(wrapped(x), y).backward()
        wrapped.step()
    wrapped.close()
    return results(model)


def _steps_in_backward(around, of_all):
    """Each parameter is stepped as soon as it has its gradient."""
    model = net()
    rules = {p: torch.optim.SGD([p], lr=0.1) for p in model.parameters()}

    def step(p):
        rules[p].step()
        rules[p].zero_grad()

    for p in model.parameters():
        p.register_post_accumulate_grad_hook(step)
    wrapped = around.wrap(model, list(rules.values()) if of_all else sgd(model))
    for x, y in around.shard(batches()):
        functional.cross_entropy(wrapped(x), y).backward()
    wrapped.close()
    return results(model)


def steps_in_backward(around):
    return _steps_in_backward(around, True)


def strangers_step_in_backward(around):
    return _steps_in_backward(around, False)


FOLLOWED = (
    replaced_and_pointed_to,
    replaced_with_a_new_optimizer,
    replaced_whole_with_a_new_optimizer,
    replaced_and_given_to_the_wrapper,
    replaced_and_added,
    replaced_in_the_middle_of_a_step,
    grown,
    grown_embedding,
    grown_by_data,
    put_into_a_group,
    replaced_with_its_state,
    assigned,
    assigned_by_the_wrapper,
    swapped,
    frozen_before_a_step,
    critic_frozen_whole,
    weight_normed,
    parametrized,
    parametrized_as_it_is,
    parametrized_for_a_while,
    weight_parametrized,
    grown_by_a_layer,
    cut_off,
    new_optimizer,
    new_optimizer_given_to_step,
    two_optimizers_in_turns,
    second_optimizer_of_a_part,
    second_optimizer_of_the_same,
    second_optimizer_of_what_is_thawed,
    sharpness_aware,
    sharpness_aware_by_a_closure,
    reordered_groups,
    parameters_moved_between_groups,
    wrapped_again,
    wrapped_again_by_the_same_optimizer,
    dropped_and_wrapped_again,
    wrapped_as_a_part,
    gradients_in_no_optimizer_stay,
    merged_and_added_later,
)
REFUSED = (old_wrapper_used, closed_wrapper_used, steps_in_backward, strangers_step_in_backward)
CHANGED = {program.__name__: program for program in (*FOLLOWED, *REFUSED, clipped_and_complex)}
