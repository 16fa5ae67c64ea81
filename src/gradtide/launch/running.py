"""A job under way, wherever its workers are: hears of them, hands on signals, carries out what job.py decides.

launcher.py has them on this machine, head.py on others.
"""

import selectors
import signal
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable
from types import FrameType
from typing import NoReturn, Self

from gradtide.launch import wording
from gradtide.launch.job import Action, Again, GoOn, JobState, Show
from gradtide.launch.members import Members
from gradtide.launch.messages import Ended, Event, Failure
from gradtide.launch.nodes.node import JobNode, NodeGone
from gradtide.launch.output import Output
from gradtide.launch.registrar import Registrar
from gradtide.launch.spec import Spec

__all__ = ["MakeOutput", "RunningJob"]

_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
MakeOutput = Callable[[int, selectors.BaseSelector], Output]


class RunningJob(ABC):
    """What both have in common. They say where a worker is (`_home_of`), and start it (`_start`)."""

    def __init__(self, spec: Spec, output: MakeOutput, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self.spec, self.job = spec, JobState(spec.workers, spec.needed, spec.max_restarts)
        self._selector = selectors.DefaultSelector()
        self._output = output(spec.most, self._selector)
        self._registrar: Registrar | None = None
        self._variables: dict[str, str] = {}
        self._running = self._given_up = False
        self._handlers: dict[int, object] = {}
        self.first_told = ""  # what was said of the failure that ended the job

    # --- what launcher.py and head.py say ---

    @abstractmethod
    def _nodes(self) -> Iterable[JobNode]: ...

    @abstractmethod
    def _home_of(self, rank: int) -> JobNode | None: ...

    @abstractmethod
    def _start(self, rank: int, incarnation: int) -> None: ...

    @abstractmethod
    def _node_gone(self, node: JobNode, why: str) -> None: ...

    def _why_not(self, workers: int) -> str:
        """Why the job can't have so many workers; nothing if it can."""
        least, most = self.spec.needed, self.spec.most
        if self.job.ending:
            return "the job is ending"
        if least <= workers <= most:
            return ""
        return (
            f"{workers} workers are not what this job was started for; it takes {least} to {most} (--min-workers, "
            "--max-workers)"
        )

    # --- the loop ---

    def _stay(self) -> None:
        """Until all workers are gone."""
        while self.job.running and not self._given_up:
            self._turn()

    def _turn(self) -> None:
        for key, _ in self._selector.select(self._patience_s()):
            key.data()
        self._regroup()
        self._output.show_progress()
        self._act(self.job.later(self._clock()))
        if self._output.reader_gone and not self.job.ending:
            self._on_signal(signal.SIGPIPE, None)

    def _patience_s(self) -> float | None:
        deadlines_s = [self.job.deadline_s()]
        if self._registrar is not None:
            deadlines_s.append(self._registrar.members.deadline_s())
        mine = [max(0.0, deadline_s - self._clock()) for deadline_s in deadlines_s if deadline_s is not None]
        patience_s = self._output.patience_s()
        return min([*mine, *([] if patience_s is None else [patience_s])], default=None)

    def _regroup(self) -> None:
        """Whoever asked is told who works together, once all have; who keeps the others waiting is ended."""
        if self._registrar is not None:
            for rank in self._registrar.members.slow(self.job.running, self._clock()):
                self._output.say(f"the others wait for worker {rank}, which has not come to the end of its step yet")
            for rank in self._registrar.members.late(self.job.running, self._clock()):
                self._output.say(f"worker {rank} does not answer, and the others have waited long enough: it is ended")
                self._end_late(rank)
            self._end_stranded(self._registrar.members)
            self._registrar.answer(self.job.running)

    def _end_stranded(self, members: Members) -> None:
        """One that was started again while the others came to their end: it would do it all over, alone. Or one that
        was added, and the others died before it joined them."""
        running, finished = self.job.running, self.job.finished
        how = (
            "was started again when the others had come to the end"
            if finished
            else "had not joined when the others died"
        )
        how += ", and nobody is left to tell it where they were"
        for rank in members.stranded(running) if finished else members.orphaned(running):
            members.gone(rank)
            self._act(self.job.reported(Failure(rank, self._clock(), "", how)))
            self._forward(signal.SIGKILL, (rank,), 0.0)

    def _end_late(self, rank: int) -> None:
        self._forward(signal.SIGKILL, (rank,), 0.0)

    def _scale(self, workers: int) -> str:
        """Somebody wants so many workers: starts some, or asks the last to go at the end of a step."""
        assert self._registrar is not None
        if why_not := self._why_not(workers):
            return why_not
        staying = self.job.staying
        came = [self._add() for _ in range(workers - len(staying))]
        went = staying[workers:]
        for rank in went:
            self.job.let_go(rank)
            self._registrar.members.going.add(rank)
        words = [wording.come(came)] if came else [wording.asked_to_go(went)] if went else []
        for line in words:
            self._output.say(line)
        return f"ok: {words[0] if words else f'{workers} workers there are already'}"

    def _add(self) -> int:
        """One more worker, which joins the others."""
        assert self._registrar is not None
        rank = self.job.grow()
        self._registrar.members.added.add(rank)
        self._start(rank, 0)
        return rank

    # --- what is heard ---

    def _heard(self, node: JobNode, event: Event | NodeGone) -> None:
        if isinstance(event, NodeGone):
            self._node_gone(node, event.why)
        elif isinstance(event, Failure):
            self._act(self.job.reported(event))
        elif isinstance(event, Ended):
            self._output.drain(event.rank)
            if event.status == 0 and self._registrar is not None and event.rank not in self.job.going:
                self.job.finished |= self._registrar.has_met(event.rank)
            self._bury(event.rank, died=event.status != 0)
            self._act(self.job.ended(event.rank, event.status, event.at_s))

    def _bury(self, rank: int, *, died: bool = True) -> None:
        if self._registrar is not None:
            self._registrar.gone(rank, died=died)

    def _act(self, actions: list[Action]) -> None:
        for action in actions:
            if isinstance(action, Show):
                self._show(action.failure)
            elif isinstance(action, Again):
                self._output.say(wording.again(action, self.spec.max_restarts))
                self._start(action.rank, action.incarnation)
            elif isinstance(action, GoOn):
                self._output.say(wording.go_on(action, self.spec.needed))
            else:
                self._forward(signal.SIGTERM, action.ranks, self.spec.grace_s)

    def _show(self, failure: Failure) -> None:
        goes_on = not self.job.ending
        if failure.traceback and not (goes_on and failure.fell):
            self._output.tell(failure.rank, failure.traceback)
        self.first_told = wording.failed(failure, self._output.last_line(failure.rank))
        self._output.say(self.first_told)

    # --- signals ---

    def _forward(self, number: int, ranks: tuple[int, ...], grace_s: float) -> None:
        for node in self._nodes():
            here = tuple(rank for rank in ranks if self._home_of(rank) is node)
            if here:
                node.forward(number, here, grace_s)

    def _take_signals(self) -> None:
        """Only a process's main thread may; in another one it is for the owner to end us."""
        if threading.current_thread() is threading.main_thread():
            self._handlers = {
                number: signal.signal(number, self._on_signal)
                for number in _SIGNALS
                if signal.getsignal(number) is not signal.SIG_IGN  # nohup, or a shell's `&`, wants it ignored
            }

    def _as_before_us(self, number: int, frame: FrameType | None) -> NoReturn:
        """No worker has started yet: a signal means what it meant before we took it, and in any case the end."""
        handler = self._handlers.get(number)
        if callable(handler):
            handler(number, frame)
        raise SystemExit(128 + number)

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        """Hands the signal on at once, even if we are stuck writing to somebody who does not read."""
        if not self._running:
            self._as_before_us(number, frame)
        grace_s = 0.0 if self.job.signalled else self.spec.grace_s
        self.job.interrupted(number)
        self._output.give_up_s = self._clock() + grace_s
        sent = signal.SIGTERM if number == signal.SIGPIPE else number
        for node in self._nodes():
            if node.ready:
                ranks = (rank for rank in self.job.incarnations if self._home_of(rank) is node)
                node.forward(sent, tuple(ranks), grace_s)
            else:
                node.kill()  # it is still loading; what it has made dies with it

    # --- the end ---

    def _last_words(self) -> None:
        """The first failure is said again last of all, where other lines have come between."""
        lines, again = wording.aftermath(self.job), not self._output.ends_with(self.first_told)
        for line in lines:
            self._output.say(line)
            again |= wording.IN_THE_SAME_WAY not in line
        if self.job.cause is not None and again:
            self._output.say(self.first_told)

    @abstractmethod
    def _close_nodes(self) -> None: ...

    def close(self) -> None:
        """Ends whatever is left, and gives signals back to whom they belonged."""
        self._close_nodes()
        self._output.close()
        if self._registrar is not None:
            self._registrar.close()
        self._selector.close()
        for number, handler in self._handlers.items():
            signal.signal(number, handler)  # type: ignore[arg-type]  # what signal.signal itself gave back
        self._handlers = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()
