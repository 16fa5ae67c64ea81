"""The way of workers that step by themselves and meet over servers, which hold the base.

In bsp a meeting is a round: the outer optimizer steps with the mean of what all have changed. In async each worker's
change is an outer step of its own. Either way a worker goes on from the base that is there afterwards, so a window that
is lost with its worker is all that is lost with it, and who comes later begins where the others are.
"""

import atexit
import contextlib
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager

import torch
from torch import Tensor

from gradtide.compress import Compress
from gradtide.errors import Closed, ConfigError
from gradtide.events import Emit, GradientsSynchronised, LocalWindow, PushBegan, Waiting
from gradtide.processes.job_protocol import Dismissed
from gradtide.store.client.operations import Done
from gradtide.store.client.pending import Pending
from gradtide.sync.job import Job
from gradtide.sync.local.base import ServedBase
from gradtide.sync.local.pace import Pace, steps_beside
from gradtide.sync.local.settings import Local
from gradtide.sync.servers.attendance import Attendance, find_address
from gradtide.sync.servers.lodging import FirstNames
from gradtide.sync.servers.smaller import Smaller
from gradtide.sync.trained import Trained

__all__ = ["LocalOverServers"]

_SPEED = "speed of worker "


class LocalOverServers:
    """One worker's end of it."""

    is_collective, servers_step, workers_step, one_weight = False, False, True, False
    asked_to_look = False
    holds_values = True  # the base of what is trained, so that workers begin alike with new keys

    def __init__(
        self, trained: Trained, job: Job, local: Local, emit: Emit, *, compress: Compress | None = None
    ) -> None:
        assert local.over is not None
        self._trained, self._job, self._local, self._emit = trained, job, local, emit
        self._mode, self._address = local.over.mode, find_address(job, local.over)
        self._steps = 0  # since the last meeting
        self._samples = self._of_all = 0.0  # and what this worker has seen in them, and all workers
        self._saw_some, self._counted = False, 0.0  # whether there was a backward in them; what the last window counted
        self._in_step: tuple[float, float] | None = (
            None  # the same since an optimizer began its step: it may look often
        )
        self._terms: float | None = None  # what the user said that the next backward's loss is a mean over
        self._window, self._pace = local.every, Pace()
        self._left = dict[str, Tensor]()  # the base of parameters that are frozen now
        self._named = FirstNames()
        self._attendance = Attendance(job, local.over, self._address)
        self.store, self._lodging, self.led = self._attendance.store, self._attendance.lodging, job.rank == 0
        in_rounds = self._attendance.in_rounds
        self.smaller = Smaller(self.store, compress, in_rounds=in_rounds, servers_step=True, each="meeting")
        self._lodging.compress_of = self.smaller.codec_of
        try:
            self._attendance.follow_members()
            self._base = self._lay_out(trained)
            self._move_in()
            self.smaller.check()
        except BaseException:
            self.close()
            raise
        self.reason = self._explain()
        atexit.register(self._end)

    def _lay_out(self, trained: Trained) -> ServedBase:
        in_rounds = self._attendance.in_rounds
        self._trained = trained = self._named.follow(trained)
        never = [name for name, group in zip(trained.names, trained.group_of(), strict=True) if group < 0]
        self.smaller.follow(trained, self._lodging.key, never)
        return ServedBase(trained, self._lodging.key, self._local.rule, in_rounds=in_rounds)

    def _move_in(self) -> None:
        """Every worker begins with what worker 0 has, or with what is there."""
        rule, base = self._local.rule, self._base
        said = [f"local steps over servers, {self._mode}, outer {rule.name} {sorted(rule.arguments.items())}"]
        later = self._lodging.move_in(self._trained, base.values, base.rules.__getitem__, {}, whole=False, said=said)
        self._attendance.follow_members()
        self._attendance.round = max(0, self.store.step - 1)
        self._pull()  # one who comes later waits here for the first round that it is in
        if self._job.behind:
            self._job.behind = base.batches  # what was counted in rounds
        if later and self._job.elastic is not None:
            self._lodging.newcomers.hear_script()  # as it is now
        self._attendance.follow_members()
        self._pace.begin()

    def _explain(self) -> str:
        size, every, smaller = self._base.size_bytes, self._local.every, self.smaller.describe()
        whose = "what all have changed" if self._attendance.in_rounds else "what it has changed, and nobody waits"
        how = "average" if self._attendance.in_rounds else "take up"
        if self._local.outer is not None:
            how = f"take a step of an outer {self._local.rule.name} with"
        steps = f"{every} steps"
        if self._local.adapt:
            steps = f"{self._window} steps ({every} on the fastest worker: adapt=True)"
        return (
            f"local steps: each worker steps by itself, and every {steps} the servers at {self._address} {how} {whose} "
            f"({self._mode}): {self._sent_bytes / self._window / 1e6:.3g} MB to be sent a step instead of "
            f"{size / 1e6:.3g}{'; ' if smaller else ''}{smaller}"
        )

    @property
    def _sent_bytes(self) -> int:
        """Of what a worker has changed, where it meets the servers."""
        return self.smaller.sent_bytes if self.smaller else self._base.size_bytes

    def _end(self) -> None:
        """A script that ends well without model.close() has given its last window too."""
        with contextlib.suppress(Closed):  # a process that was forked from this one uses nothing of it
            if getattr(sys, "last_value", None) is None:
                self.finish()
            self.store.close()

    # --- a gradient's way ---

    def measure(self, weight: float) -> float:
        return float(weight > 0)

    def ready(self, index: int, weight: float) -> None:
        """It stays here."""

    def synchronise(self, weights: Sequence[float], late: bool) -> None:
        for parameter, weight in zip(self._trained.parameters, weights, strict=True):
            if weight == 0.0:  # of a part that counts nothing: no step is taken with it
                parameter.grad = None
        self._emit(GradientsSynchronised(0))

    def saw(self) -> None:
        self._saw_some = True
        share = self._job.share
        samples, of_all = (1.0, 1.0) if share is None else (float(share.samples), float(share.of))
        samples, self._terms = samples if self._terms is None else self._terms, None
        if self._in_step is None:
            self._count(samples, of_all)
        else:
            self._in_step = samples, of_all

    def _count(self, samples: float, of_all: float) -> None:
        self._samples, self._of_all = self._samples + samples, self._of_all + of_all

    def check_step(self) -> None:
        self._base.stepped()
        self._in_step = 0.0, 0.0

    def step(self, weights: Sequence[float]) -> None:
        """The optimizers take it."""

    def stepped(self) -> None:
        self._count(*(self._in_step or (0.0, 0.0)))
        self._in_step = None
        self._steps += 1
        self._pace.stepped()
        if self._steps >= self._window:
            self._meet()

    def weigh(self, terms: float, otherwise: float) -> float:
        self._terms = terms
        return float(terms > 0)

    # --- where workers meet ---

    def _meet(self, *, flush: bool = False) -> None:
        """What this worker has changed goes into the base, and the base becomes its parameters. `flush`: with all that
        compression has left out so far."""
        self._emit(Waiting())
        attendance = self._attendance
        attendance.check_all_go_on(self.store.step)
        attendance.round, self.led = self.store.step, self._job.rank == 0
        if new := self._base.take_up_buffers():
            self._make_keys(new)
        window = self._push(flush)
        self._pull()
        self._begin_window()
        if attendance.in_rounds and self._job.elastic is None and not attendance.was_uneven:
            self._base.check_alike()
        self._emit(GradientsSynchronised(self._base.size_bytes if flush else self._sent_bytes))
        if window is not None:
            self._emit(window)
        if self._local.adapt:
            self._adapt()
        self._lodging.newcomers.tell_script()
        self._follow_members()
        self._pace.begin()

    def _push(self, flush: bool) -> LocalWindow | None:
        """In bsp until the round is closed: then all of it is in the values. In async, where no round says it, returns
        when it was applied."""
        if self._attendance.in_rounds:
            self.smaller.begin_window(self._of_all)
        self._emit(PushBegan(self.store.step, self.store.sequence))
        values = self._base.changes()
        if not self._saw_some and any(bool(value.any()) for value in values.values()):
            self._samples = self._counted  # a second step with the gradients of the last window
        changes = self.store.push(values, weight=self._samples, flush=flush)
        beside = self._base.beside(self._samples, self._job.batches, led=self.led)
        for handle in [changes, *(self.store.push(named, weight=weight) for named, weight in beside)]:
            handle.wait()
        if self._attendance.in_rounds:
            return None
        assert isinstance(changes, Pending)
        return LocalWindow(self._steps, self._samples, self._began, _versions(changes.report))

    def _pull(self) -> None:
        self.store.pull(self._base.values)
        self._began = _versions(self.store.last)
        self._base.hand_out()

    def _begin_window(self) -> None:
        self._counted, self._saw_some = self._samples, False
        self._steps, self._samples, self._of_all, self._in_step = 0, 0.0, 0.0, None

    def _adapt(self) -> None:
        """Workers tell each other how fast they are; a slow one pushes after fewer steps."""
        own, there = self._lodging.key(f"{_SPEED}{self._attendance.number}"), self._lodging.key(_SPEED)
        speed = torch.tensor(self._pace.speed, dtype=torch.float64)
        known = self.store.keys(there)
        if own in known:
            self.store.push(own, speed, wait=True)
        else:
            self.store.init(own, speed)
        here = {f"{there}{member.worker}" for member in self.store.round_members}
        others = [key for key in known if key in here and key != own]
        fastest = max([float(speed), *map(float, self.store.pull(others) if others else [])])
        self._window = steps_beside(self._local.every, float(speed), fastest)
        self.reason = self._explain()

    def _follow_members(self) -> None:
        if self._attendance.is_over:
            self.smaller.leave()
            self.close()
            raise Dismissed(0)
        if self._attendance.in_rounds or self._job.elastic is not None:
            self.smaller.notice_deaths(led=self._job.rank == 0)
        self._attendance.follow_members()

    # --- besides gradients ---

    def edit(self) -> AbstractContextManager[None]:
        raise ConfigError(
            "the servers hold the base that all workers begin each window with, so workers can't change parameters by "
            "hand; load or change them before the model is wrapped, or use Local without over="
        )

    def share_buffers(self, root: int = 0) -> None:
        """They are averaged where workers meet."""

    def add_up(self, numbers: Tensor) -> Tensor:
        return numbers

    @property
    def apart(self) -> int:
        """How many steps this worker has taken by itself since the last meeting."""
        return self._steps

    def follow(self, trained: Trained) -> None:
        """Some parameters are trained from now on that were not, or the other way round: all meet first."""
        self.catch_up()
        before = self._base.base
        self._base = self._lay_out(trained)
        self._left |= {key: base for key, base in before.items() if key not in self._base.base}
        for key in self._left.keys() & self._base.base.keys():
            if not torch.equal(self._left.pop(key), self._base.base[key]):
                raise ConfigError(
                    f"{self._lodging.name(key)} was changed while it was frozen, but the servers hold it as it was; "
                    "leave it as it is, or use Local without over="
                )
        self._make_keys(self._base.values)
        self._pull()
        self.reason = self._explain()

    def _make_keys(self, keys: Mapping[str, Tensor]) -> None:
        if self._job.rank == 0:  # whoever is the first now
            self._lodging.make_keys(keys, self._base.rules.__getitem__)
        self._lodging.wait_for(list(keys))

    def left_out(self) -> dict[str, Tensor]:
        """What compression has left out of this worker's changes so far, for a checkpoint of the last round."""
        if self._steps:
            raise ConfigError(
                f"this worker has taken {self._steps} steps by itself, which the servers don't have yet; keep what "
                "compression left out at a multiple of Local's steps, or call model.meet() on all workers first"
            )
        return self.smaller.state()

    def load_left_out(self, state: Mapping[str, Tensor]) -> None:
        self.smaller.load_state(state)

    # --- who works together ---

    @contextmanager
    def uneven(self) -> Iterator[None]:
        """In it some workers may take more steps than others; it ends with a window that may be a shorter one."""
        with self._attendance.uneven():
            yield
            self.catch_up()

    def depart(self) -> None:
        """Goes after the next few meetings, when the others know it; in async, where nobody waits, at once, with what
        it has."""
        if self._attendance.in_rounds:
            self._attendance.depart()
            return
        self.finish()
        self.close()
        raise Dismissed(0)

    def catch_up(self) -> None:
        """All meet now; the window may be a shorter one. In async others may have gone on since this worker's last, and
        nothing that compression has left out is kept back."""
        in_rounds = self._attendance.in_rounds
        if self._steps:
            self._meet(flush=bool(self.smaller) and not in_rounds)
        elif not in_rounds:
            self.store.flush_residuals()
            self._pull()

    def finish(self) -> None:
        """The last window is over: who has been in a round that another was not in, as it had ended, is told so."""
        self.catch_up()
        if self._attendance.announce_end() and self._job.elastic is None:
            self._attendance.wait_until_end_is_known()
            self._attendance.check_all_go_on(self._attendance.round)

    def has_in_common(self, tensor: Tensor) -> bool:
        return False

    def ask_to_look(self) -> None:
        """They look where they meet."""

    def begin_again(self) -> None:
        """After RolledBack: what was done since the last meeting is forgotten."""
        for parameter in self._trained.parameters:
            parameter.grad = None
        self._pull()
        self._begin_window()
        self._pace.begin()

    def close(self) -> None:
        atexit.unregister(self._end)
        self._attendance.close()


def _versions(done: Done[memoryview] | None) -> list[list[int]]:
    """Where each shard was, as [shard, epoch, sequence]."""
    assert done is not None
    return [[shard, version.epoch, version.sequence] for shard, version in sorted(done.versions.items())]
