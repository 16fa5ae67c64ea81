"""The way of a gradient to the servers and back: pushed as backward goes on; values are pulled at the step.

Each parameter is a key under its own name. With an elementwise optimizer the servers step, by torch.optim itself; with
any other, with norm clipping, or if asked to, they only average: the gradient of all is pulled when backward ends, and
every worker takes the same step with it.
"""

import atexit
import contextlib
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from gradtide.compress import Compress
from gradtide.errors import Closed, ConfigError, PeerTimeout
from gradtide.events import Emit, GradientsSynchronised, LinksPlanned, PushBegan, ValuesPulled, Waiting
from gradtide.handle import Handle
from gradtide.processes.job_protocol import Dismissed
from gradtide.store import update
from gradtide.sync.buckets import Buckets
from gradtide.sync.job import Job
from gradtide.sync.servers.attendance import Attendance, find_address
from gradtide.sync.servers.averages import Averages, as_real
from gradtide.sync.servers.lodging import FirstNames
from gradtide.sync.servers.options import ToldOptions, why_servers_cannot_step
from gradtide.sync.servers.settings import Servers
from gradtide.sync.servers.smaller import Smaller
from gradtide.sync.state import kind_of
from gradtide.sync.trained import Trained, has_stepped
from gradtide.sync.watching.guard import Guard, LateGuard, StateKeeper
from gradtide.sync.ways import EveryStep

__all__ = ["ServersWay"]

_NEARLY_NOUGHT = 1e-30  # what counts nothing beside anything else, and all where there is nothing else
_LOOK_S = 0.005
_OF_ROUND = "round of the buffers"
_CALM_STEPS = 3  # with one backward each, before gradients leave while backward goes on


class ServersWay(EveryStep):
    """The way of workers whose parameters live on servers."""

    is_collective = False  # everybody comes and goes by itself
    one_weight = True

    def __init__(
        self,
        trained: Trained,
        job: Job,
        servers: Servers,
        emit: Emit,
        *,
        overlap: bool,
        workers_step: bool = False,
        compress: Compress | None = None,
    ) -> None:
        self._emit = emit
        self._job, self._overlap = job, overlap
        address = find_address(job, servers)
        why = "share_parameters=False" if workers_step else why_servers_cannot_step(trained)
        if not why and has_stepped(trained.optimizer):
            why = "the optimizer has state of earlier steps, which servers would begin without"
        self.servers_step, self.workers_step = not why, bool(why)
        self.holds_values = self.servers_step  # of what is trained, so that workers begin alike with new keys
        if why and servers.mode == "async":
            raise ConfigError(
                f"in async every push is an update, so the servers must step, and they can't with {why}; use 'bsp'"
            )
        waits = ", so that each step waits for its round, as in bsp" if why and servers.mode != "bsp" else ""
        who = f"the workers step ({why}){waits}" if why else "the servers step"
        self.reason = f"servers at {address}, {servers.mode}; {who}"
        servers = replace(servers, mode="bsp") if waits else servers  # all must step with the same gradients
        self._mode = servers.mode
        self.led = job.rank == 0  # whether it was the first worker in the last round that was pushed for
        self._calm, self._fired, self._hook = 0, set[int](), None
        self._keeper: StateKeeper | None = None
        self._pushed = False  # something, so that the servers may have stepped
        self._brought_home = False  # whether the optimizer's state, and the newest values, are here
        self._told = False  # whether the servers know the options of this step
        self._weighed: float | None = None  # what weigh() said for this step
        self._shown: list[tuple[Tensor, int]] = []  # of the state that the user saw last, and the versions
        self._known_buffers = set[str]()  # the keys that are there
        self._first_like: dict[str, tuple[torch.dtype, torch.Size]] = {}  # what a buffer was like at first, by name
        self._told_epoch = -1  # of the table by which it was told what goes to which server
        self._named = FirstNames()
        self._attendance = Attendance(job, servers, address)
        self.store, self._lodging = self._attendance.store, self._attendance.lodging
        in_rounds = self._mode != "async"
        self.smaller = Smaller(self.store, compress, in_rounds=in_rounds, servers_step=self.servers_step)
        self._lodging.compress_of = self.smaller.codec_of
        self._options = ToldOptions(self.store, job, self._lodging, in_rounds=in_rounds)
        self._follow_members()
        self._waiting: list[Handle[None]] = []
        self._lay_out(trained)
        try:
            self._move_in()
            self.smaller.check()
        except BaseException:
            self.close()
            raise
        saved = self.smaller.describe()
        self.reason += f"; {saved}" if saved else ""
        self._values_seen.remember_all(trained.parameters)
        atexit.register(self._end)
        if self.servers_step:
            self._hook = trained.optimizer.register_load_state_dict_pre_hook(_refuse_state)
            self._keeper = StateKeeper(trained.optimizer, _HELD, self._show_state)

    def _end(self) -> None:
        """A script that ends well without model.close() has sent its last gradients too."""
        with contextlib.suppress(Closed):  # a process that was forked from this one uses nothing of it
            if getattr(sys, "last_value", None) is None:
                self.finish()
            self.store.close()

    def _lay_out(self, trained: Trained) -> None:
        self._trained = trained = self._named.follow(trained)
        self._place_values()
        if self.workers_step:
            self._averages = Averages(trained, self._key, self.smaller, in_step=self._mode == "bsp")
        else:
            self.smaller.follow(trained, self._key)
        self._buckets = Buckets(trained.parameters, overlap=self._overlap)
        if self.servers_step:
            self._options.follow(trained)
        self._given, self._values_seen = (Guard(len(trained.parameters)) for _ in range(2))
        self._late_guard = LateGuard(trained)
        self._weights = [0.0] * len(trained.parameters)  # what those that are ready count

    def _place_values(self) -> None:
        """Where values are pulled to: into the parameters' own memory."""
        named = zip(self._trained.names, self._trained.parameters, strict=True)
        self._values = {self._key(name): as_real(parameter.detach()) for name, parameter in named}
        self._places = [parameter.data_ptr() for parameter in self._trained.parameters]

    def follow(self, trained: Trained) -> None:
        """Some parameters are trained from now on that were not, or the other way round."""
        if self.servers_step and (why := why_servers_cannot_step(trained)):
            raise ConfigError(f"the servers step, and can't go on: {why}; {_ANEW}")
        if self._buckets.left:
            raise ConfigError(
                "other parameters are to be trained now (frozen, unfrozen, added), but gradients have left for this "
                "step already; call step() first, or make the model with overlap=False"
            )
        if self.servers_step:
            self._check_values()
        for handle in self._waiting:
            handle.wait()
        self._waiting.clear()
        before, weighed = dict(self._values), self._weighed  # which is said before forward, where this is called
        self._lay_out(trained)
        if self._job.rank == 0:  # whoever is the first now
            self._lodging.make_keys(self._values if self.servers_step else self._averages.room, self._rule)
        self._lodging.wait_for(list(self._values if self.servers_step else self._averages.room))
        if self.servers_step:
            new = {key: value for key, value in self._values.items() if key not in before}
            if new:
                self.store.pull(new)
        self._next_step()
        self._weighed = weighed
        self._values_seen.remember_all(trained.parameters)

    def _key(self, name: str) -> str:
        return self._lodging.key(name)

    # --- a gradient's way ---

    def ready(self, index: int, weight: float) -> None:
        if index in self._fired:
            self._calm = -1  # one more backward before the step: gradients must wait for it from now on
        self._fired.add(index)
        self._weights[index] = weight
        gradient = self._trained.parameters[index].grad
        self._given.remember(index, gradient)
        if self._overlap and (self._calm >= _CALM_STEPS or self._buckets.left):
            leaving = self._buckets.put(index)
            if leaving is None:
                raise ConfigError(
                    f"{self._trained.names[index]} got a gradient twice before step(), and the first has left; put all "
                    "but the last backward in no_sync(), or make the model with overlap=False"
                )
            for bucket in leaving:
                self._push(bucket.indices, self._weights)

    def _push(self, indices: Sequence[int], weights: Sequence[float]) -> None:
        """Who has no gradient of a parameter says so with a negative weight: if nobody has, nothing happens to it."""
        self._begin_round()
        names, parameters = self._trained.names, self._trained.parameters
        by_weight: dict[tuple[float, bool], dict[str, Tensor]] = {}
        for index in indices:
            gradient, counts = self._measured(parameters[index].grad, weights[index])
            if gradient is None:
                gradient, counts = torch.zeros_like(parameters[index]), -counts if self.servers_step else counts
            alike = by_weight.setdefault((counts, self.smaller.goes_whole(index)), {})
            alike[self._key(names[index])] = as_real(_dense(gradient))
        self._emit(PushBegan(self._attendance.round, self.store.sequence))
        for (counts, whole), named in by_weight.items():
            self._waiting.append(self.store.push(named, weight=counts, whole=whole))

    def _measured(self, gradient: Tensor | None, counts: float) -> tuple[Tensor | None, float]:
        """The servers divide by the sum of the weights, so all must be of one batch: the one that comes before this
        step. A gradient that stayed from an earlier one is brought to its measure."""
        if self._mode == "async":
            return gradient, 1.0
        now = self._job.weight if self._weighed is None else self._weighed
        if gradient is None or counts == now:
            return gradient, now
        now = now or _NEARLY_NOUGHT
        return gradient * (counts / now), now

    def synchronise(self, weights: Sequence[float], late: bool) -> None:
        if self.servers_step:
            raise ConfigError(
                "the servers take the step, so no worker ever has the whole gradient; make the model with "
                "share_parameters=False, or say clip_norm=, and they only average"
            )
        self._push_the_rest(weights)
        self._waiting.append(self.store.push(self._averages.flags(late, self._attendance.round)))
        self._wait_for_the_round()
        self.store.pull(self._averages.room)
        self._tell_staleness()
        self._late_guard.watch(self._averages.hand_out())
        self._next_step()
        self._follow_members()

    def step(self, weights: Sequence[float]) -> None:
        self._check_edits()
        self._forget_shown()
        if self._buckets.left and self._options.outdated:
            raise ConfigError(
                "an option of the optimizer was changed between backward and step, when gradients had left for the "
                "servers, which step with it; change options before backward, or make the model with overlap=False"
            )
        self._push_the_rest(weights)
        self._wait_for_the_round()
        self.store.pull(self._values)
        self._tell_staleness()
        for parameter in self._trained.parameters:
            parameter.grad = None
        self._follow_members()
        self._waiting = [handle for handle in self._waiting if not _ended(handle)]
        self._next_step()
        self._values_seen.remember_all(self._trained.parameters)

    def check_step(self) -> None:
        """Before the optimizer steps, where workers do."""
        self._late_guard.check()

    def _check_edits(self) -> None:
        for index, parameter in enumerate(self._trained.parameters):
            if self._given.knows(index) and self._given.is_changed(index, parameter.grad):
                raise ConfigError(
                    f"the gradient of {self._trained.names[index]} was changed between backward and step, but it is "
                    "this worker's alone: the servers step; make the model with share_parameters=False, or say "
                    "clip_norm=, and they only average"
                )
        self._check_values()

    def _check_values(self) -> None:
        if [parameter.data_ptr() for parameter in self._trained.parameters] != self._places:
            self._follow_memory()
        edited = self._values_seen.changed(self._trained.parameters)
        if edited is not None:
            raise ConfigError(_CHANGED.format(self._trained.names[edited]))

    def _follow_memory(self) -> None:
        """A parameter lies elsewhere now (`parameter.data = other`), with the values that it had."""
        if why := why_servers_cannot_step(self._trained):
            raise ConfigError(f"the servers step, and can't go on: {why}; {_ANEW}")
        before = self._values
        self._place_values()
        for name, key in zip(self._trained.names, before, strict=True):
            if not torch.equal(before[key], self._values[key]):
                raise ConfigError(_CHANGED.format(name))
        self._values_seen.remember_all(self._trained.parameters)

    @contextmanager
    def edit(self) -> Iterator[None]:
        """All workers change their parameters alike."""
        if self.servers_step:
            raise ConfigError(
                "the servers hold the parameters and step them, so workers can't change them; make the model with "
                "share_parameters=False, and each worker does"
            )
        yield

    def _follow_members(self) -> None:
        """Who is in the next step shares its batch; the first of them speaks for all."""
        if self._attendance.is_over:
            self.smaller.leave()
            self.close()
            raise Dismissed(0)
        if self._mode != "async" or self._job.elastic is not None:
            self.smaller.notice_deaths(led=self._job.rank == 0)
        self._options.took_over |= self._attendance.follow_members()

    def depart(self) -> None:
        """Goes after the next few steps, when the others know it; in async, where nobody waits, at once."""
        if self._mode == "async":
            self.store.flush_residuals()
            self.close()
            raise Dismissed(0)
        self._attendance.depart()

    def _wait_for_the_round(self) -> None:
        """In bsp, until the round is closed. Otherwise what was pushed may take its time: pull waits if it must."""
        self._emit(Waiting())
        if self._mode == "bsp":
            for handle in self._waiting:
                handle.wait()
        self._tell_links()
        self._emit(GradientsSynchronised(self.smaller.sent_bytes))

    def _tell_staleness(self) -> None:
        pulled = self.store.last
        if pulled is not None and self._mode != "async":  # which knows no rounds
            self._emit(ValuesPulled(pulled.round, pulled.staleness, self.store.sequence))

    def _tell_links(self) -> None:
        """When shards have moved it is told again. What compression makes of each block is not known beforehand."""
        epoch = self.store.table.epoch
        if epoch != self._told_epoch and not self.smaller:
            keys = list(self._values if self.servers_step else self._averages.room)
            sizes = self.store.bytes_by_server(keys)
            me = f"worker {self._job.rank}"
            loads: list[list[str | int]] = [[me, name, size] for name, size in sizes.items()]
            loads += [[name, me, size] for name, size in sizes.items()]
            self._emit(LinksPlanned(f"servers, {self._mode}", loads))
        self._told_epoch = epoch

    def _push_the_rest(self, weights: Sequence[float]) -> None:
        rest = [index for bucket in self._buckets.rest() for index in bucket.indices]
        if rest:
            self._push(sorted(rest), weights)

    def _next_step(self) -> None:
        self._buckets.restart()
        self._calm += self._calm >= 0 and bool(self._fired)  # one whose backwards were all in no_sync tells nothing
        self._fired.clear()
        self._given.next_look()
        self._told, self._weighed = False, None

    def weigh(self, terms: float, otherwise: float) -> float:
        """What compression left out counts by the sum of a step's weights: so they are terms a sample of the batch, and
        where each sample is a term that sum is 1, for large and small batches."""
        share = self._job.share if self.smaller else None
        self._weighed = (terms if share is None else terms / share.of) or _NEARLY_NOUGHT * otherwise
        return self._weighed

    def _buffers(self, round_: int) -> dict[str, Tensor]:
        """In bsp rounds take turns with two keys for each buffer: when one is written again, everybody has read it."""
        turn = " of odd rounds" if self._mode == "bsp" and round_ % 2 else ""
        return {self._key(f"buffer {self._label(n, b)}{turn}"): as_real(b) for n, b in self._trained.buffers}

    def _label(self, name: str, buffer: Tensor) -> str:
        """A buffer that got another shape has another key."""
        like = buffer.dtype, buffer.shape
        return name if self._first_like.setdefault(name, like) == like else f"{name}, {kind_of(buffer)}"

    def _shared_buffers(self, round_: int) -> dict[str, Tensor]:
        """Those of a round. The program may have added some, which the first worker makes keys of."""
        buffers = self._buffers(round_)
        if not buffers.keys() <= self._known_buffers:
            keys = {**self._buffers(0), **self._buffers(1)}
            if self.led:
                self._lodging.make_loose(keys)
            self._lodging.wait_for(list(keys))
            self._known_buffers |= keys.keys()
        return buffers

    def share_buffers(self, root: int = 0) -> None:
        """In rounds those of the first worker are there before the round can close; in bounded a later round's may
        be. In async they are the newest."""
        round_ = self._attendance.round
        buffers = self._shared_buffers(round_)
        if not buffers:
            return
        if self._mode == "async":
            _ = self.store.push(buffers, wait=True) if self.led else self.store.pull(buffers)
        elif not self.led and self._job.elastic is None:
            self.store.pull(buffers)
        elif not self.led:
            self._take_buffers(buffers, round_)

    def _take_buffers(self, buffers: dict[str, Tensor], round_: int) -> None:
        """If the first worker died before it gave its own, those of the next one count."""
        deadline_s, told = time.monotonic() + self._job.timeout_s, torch.zeros((), dtype=torch.int64)
        while True:
            leads = self._attendance.leads(round_)
            self.store.pull({self._key(_OF_ROUND): told})
            if int(told) >= round_:
                self.store.pull(buffers)
                return
            if leads:
                self._give_buffers(buffers, round_)
                return
            if time.monotonic() > deadline_s:
                raise PeerTimeout(f"nobody has given the buffers of step {round_} within {self._job.timeout_s:g} s")
            time.sleep(_LOOK_S)

    def _give_buffers(self, buffers: dict[str, Tensor], round_: int) -> None:
        if not buffers:
            return
        self.store.push(buffers, wait=True)
        if self._job.elastic is not None:
            self.store.push(self._key(_OF_ROUND), torch.tensor(round_), wait=True)

    def add_up(self, numbers: Tensor) -> Tensor:
        return numbers

    # --- the store ---

    def _move_in(self) -> None:
        """Every worker begins with what worker 0 has, or with what is there."""
        trained, loose = self._trained, {**self._buffers(0), **self._buffers(1)}
        self._known_buffers |= loose.keys()
        if self._job.elastic is not None:
            loose[self._key(_OF_ROUND)] = torch.tensor(0)
        if self._attendance.number == 0 and self._buffers(0).keys() <= set(self.store.keys()) and trained.buffers:
            self.store.pull(self._buffers(0))  # of a checkpoint that was made when there was one key for each
        keys = self._values if self.servers_step else self._averages.room
        later = self._lodging.move_in(trained, keys, self._rule, loose, whole=self.workers_step)
        self._attendance.round = max(0, self.store.step - 1)
        self._pull_all()
        if self.workers_step and self._job.elastic is not None:
            self.store.pull(self._averages.room)  # so that servers know that this worker begins
        if later and self._job.elastic is not None:
            self._hear()
        self._follow_members()

    def _hear(self) -> None:
        """This worker comes later."""
        newcomers = self._lodging.newcomers
        if self._mode == "async":
            newcomers.hear_script()
        else:
            newcomers.hear(self._trained, held=self.workers_step)
        self._pull_all()
        if self.servers_step:
            self._options.know_nothing()

    def _pull_all(self) -> None:
        wanted = {**self._buffers(self._attendance.round), **(self._values if self.servers_step else {})}
        if wanted:
            self.store.pull(wanted)

    def _rule(self, key: str) -> Any:
        if not self.servers_step:
            return update("mean")
        return self._options.rule(key)

    def _begin_round(self) -> None:
        """Before the first gradient leaves, so that the round can't close without it: buffers, and options."""
        if self._told:
            return
        self._attendance.check_all_go_on(self.store.step)
        self._pushed, self._brought_home = True, False
        self._told, self._attendance.round, self.led = True, self.store.step, self._job.rank == 0
        if self.led and self._mode != "async":
            self._give_buffers(self._shared_buffers(self._attendance.round), self._attendance.round)
        if self.servers_step:
            self._options.tell()
        self._lodging.newcomers.tell(self._trained, held=self.workers_step)
        self.smaller.scale(led=self.led)

    def left_out(self) -> dict[str, Tensor]:
        """What compression has left out of this worker's gradients so far, for a checkpoint."""
        return self.smaller.state()

    def load_left_out(self, state: Mapping[str, Tensor]) -> None:
        self.smaller.load_state(state)

    def uneven(self) -> AbstractContextManager[None]:
        """In it some workers may take more steps than others: who goes on shares the batches of those who ended."""
        return self._attendance.uneven()

    def begin_again(self) -> None:
        self._waiting.clear()
        for parameter in self._trained.parameters:
            parameter.grad = None
        self._next_step()
        if self.servers_step:
            self._options.follow(self._trained)
        self._pull_all()
        self._values_seen.remember_all(self._trained.parameters)

    def finish(self) -> None:
        """The last pushes must arrive, and those who are behind must know that our part of their rounds is there."""
        if self.workers_step:
            self._lodging.newcomers.leave(self._trained)
        announced = self._attendance.announce_end()
        waiting, self._waiting = self._waiting, []
        for handle in waiting:
            handle.wait(self._job.timeout_s)
        if self._mode == "async":
            self.store.flush_residuals()
        self._take_home()
        if announced and self._job.elastic is None:
            self._attendance.wait_until_end_is_known()
            if self._pushed:  # else it has taken no step that others could have missed
                self._attendance.check_all_go_on(self._attendance.round)

    def _take_home(self) -> None:
        """What servers have by now. All rounds that this worker was in are closed: in rounds, all workers that took as
        many steps get the same."""
        if not self.servers_step or not self._pushed or self._told:  # within a step there is nothing whole to take
            return
        if self._mode != "bsp":  # where the last step has them
            self.store.pull_now({**self._values, **self._buffers(self._attendance.round)})
            self._values_seen.remember_all(self._trained.parameters)
        if self._keeper is not None:
            self._keeper.fill()
        self._brought_home = True

    def _show_state(self) -> None:
        """Fills the optimizer's state with what the servers' optimizers have learnt."""
        if self._told:
            raise ConfigError(
                "the optimizer's state is the servers', and gradients have left for the next step already; call "
                "state_dict() before backward or after step(), or make the model with overlap=False"
            )
        learnt = self.store.optimizer_state({self._key(name) for name, _ in self._named})
        states: dict[Tensor, dict[str, Tensor]] = {}
        for name, parameter in self._named:
            if (state := learnt.get(self._key(name))) is not None:
                states[parameter] = {name: _as_state_of(parameter, value) for name, value in state.items()}
        own = self._trained.optimizer.state
        own.clear()
        own.update(states)
        self._shown = [(value, value._version) for state in states.values() for value in state.values()]

    def _forget_shown(self) -> None:
        """What a state_dict has are copies, and a change of one would be dropped."""
        shown, self._shown = self._shown, []
        if any(value._version != version for value, version in shown):
            raise ConfigError(_HELD)
        if shown and self._keeper is not None:
            self._keeper.forget()

    def _let_go_of_state(self, keeper: StateKeeper) -> None:
        """What the optimizer has learnt stays with the servers, after a failure: it can't go on as if it had learnt
        nothing."""
        if self._pushed and not self._brought_home and not _is_stateless(self._trained.optimizer):
            keeper.lose(_LOST)
        else:
            keeper.give_back()
        self._keeper = None

    def close(self) -> None:
        atexit.unregister(self._end)
        if self._hook is not None:
            self._hook.remove()
        if self._keeper is not None:
            self._let_go_of_state(self._keeper)
        self._attendance.close()


def _is_stateless(optimizer: torch.optim.Optimizer) -> bool:
    return isinstance(optimizer, torch.optim.SGD) and not any(group["momentum"] for group in optimizer.param_groups)


def _refuse_state(optimizer: Any, state: Any) -> None:
    raise ConfigError(
        "the servers hold the optimizer's state, and begin without; load it before wrapping, or make the model with "
        "share_parameters=False, and each worker steps"
    )


_CHANGED = (
    "{} was changed, but the servers hold it and step it; make the model with share_parameters=False, and each worker "
    "does"
)
_ANEW = "close() the wrapper and wrap the model again, with Servers(..., name='another')"
_LOST = (
    "this training ended within a step, or in an error, and with it what the servers' optimizers had learnt; make a "
    "new optimizer, or load a state_dict() that was saved before"
)
_HELD = (
    "the servers hold the optimizer's state: read it by optimizer.state_dict(); to change it, make the model with "
    "share_parameters=False, and each worker steps"
)


def _as_state_of(parameter: nn.Parameter, value: Tensor) -> Tensor:
    """As torch's optimizer would have it."""
    if parameter.is_complex() and value.dim() == parameter.dim() + 1:
        value = torch.view_as_complex(value)
    return value.to(parameter.device) if value.shape == parameter.shape else value


def _dense(gradient: Tensor) -> Tensor:
    return gradient.to_dense() if gradient.is_sparse else gradient


def _ended(handle: Handle[None]) -> bool:
    if not handle.done():
        return False
    handle.result()
    return True
