"""What the workers' processes do that load another state of the model, while compression holds something back."""

import copy
import pickle

import torch
from compressing import Given, whole_numbers

import gradtide
from gradtide.collective import Group
from gradtide.errors import ConfigError
from gradtide.sync import Job

STEPS = 4


def _begun(group, sync, options, store):
    net = Given(torch.float64)
    rule = torch.optim.SGD(net.parameters(), lr=0.5)
    return net, gradtide.DataParallel(net, rule, sync, job=Job.of(group, store), **options)


def _steps(model, group, first=0, count=STEPS, by=1.0):
    for step in range(first, first + count):
        model([by * g for g in whole_numbers(group.rank, step)]).backward()
        model.step()
    model.meet()


def _values(net):
    return [p.detach().clone() for p in net.values]


def _kept(net):
    return {name: value.clone() for name, value in net.state_dict().items()}


def load_by(how, net, model, state):
    """As programs do: the wrapped model, what it wraps, a parent of it, a part of it."""
    match how:
        case "model":
            model.load_state_dict(state)
        case "module":
            model.module.load_state_dict(state)
        case "parent":
            parent = torch.nn.ModuleDict({"it": model})
            parent.load_state_dict({f"it.{name}": value for name, value in state.items()})
        case "part":
            net.values.load_state_dict({name.removeprefix("values."): value for name, value in state.items()})


def abandon(rank, size, name, sync, options, store, how):
    """Steps, an earlier state, and steps with nothing but zeros: what that was, and what the parameters are then."""
    torch.set_num_threads(1)
    with Group.join(name, rank, size, timeout_s=60) as group:
        net, model = _begun(group, sync, options, store)
        _steps(model, group)
        earlier = _kept(net)
        _steps(model, group, STEPS)
        load_by(how, net, model, earlier)
        _steps(model, group, by=0.0)
        found = list(earlier.values()), _values(net)
        model.close()
        return found


def go_back(rank, size, name, sync, options, order, how):
    """Twice the same steps, from a state that was kept and is loaded again with what was left out then."""
    torch.set_num_threads(1)
    with Group.join(name, rank, size, timeout_s=60) as group:
        net, model = _begun(group, sync, options, None)
        _steps(model, group)
        earlier, left = _kept(net), copy.deepcopy(model.sync_state())
        _steps(model, group, STEPS)
        first = _values(net)
        for what in order:
            if what == "model":
                load_by(how, net, model, earlier)
            else:
                model.load_sync_state(left)
        _steps(model, group, STEPS)
        found = first, _values(net)
        model.close()
        return found


def look_away(rank, size, name, sync, options, store, between):
    """What the parameters are in the end, if something is done between steps that leaves them as they were, or not."""
    torch.set_num_threads(1)
    with Group.join(name, rank, size, timeout_s=60) as group:
        net, model = _begun(group, sync, options, store)
        for step in range(STEPS):
            _steps(model, group, step, 1)
            if between == "an average takes their place":
                own = _kept(net)
                model.load_state_dict({key: value * 0.5 for key, value in own.items()})
                model.load_state_dict({key: value * 0.25 for key, value in own.items()})
                model.load_state_dict(own)
            elif between == "an edit":
                with model.edit():
                    for value in net.values:
                        value.data.clamp_(-1e9, 1e9)
            elif between == "copies":  # of the model load what they like
                copy.deepcopy(net).load_state_dict({key: value * 0 for key, value in net.state_dict().items()})
                again = pickle.loads(pickle.dumps(net))
                again.load_state_dict({key: value * 0 for key, value in net.state_dict().items()})
        found = _values(net)
        model.close()
        return found


def load_apart(rank, size, name):
    """Of what is wrapped, in the middle of a window."""
    with Group.join(name, rank, size, timeout_s=60) as group:
        net, model = _begun(group, gradtide.Local(3), {"compress": "topk:0.1"}, None)
        model(whole_numbers(rank, 0)).backward()
        model.step()
        before = _values(net)
        try:
            net.load_state_dict({key: value * 0 for key, value in net.state_dict().items()})
        except ConfigError as error:
            said = str(error)
        same = all(torch.equal(a, b) for a, b in zip(before, net.values, strict=True))
        model.close()
        return said, same
