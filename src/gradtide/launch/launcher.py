"""The launcher: starts the fork server and the workers, hands on signals, carries out what job.py decides."""

import contextlib
import os
import selectors
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from types import FrameType
from typing import Self

from gradtide.environment import with_variables
from gradtide.launch import wording
from gradtide.launch.job import Action, Again, GoOn, JobState, Show
from gradtide.launch.members import Members
from gradtide.launch.messages import EVENTS, Ended, Failure, Forward, Ready, Start, receive, send
from gradtide.launch.output import Output
from gradtide.launch.registrar import Registrar
from gradtide.launch.spec import Spec, describe, free_port, variables_of

__all__ = ["Launcher"]

_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
_TIDY_S = 5.0  # how long a worker whose script has failed may take to leave
_GONE_S = 5.0
# What the fork server runs. The folder that Python puts first for -c is not one that a script would see.
_SERVE = (
    "import sys; sys.flags.safe_path or sys.path.pop(0); "
    "from gradtide.launch.forkserver import main; main(sys.argv[1:])"
)


class Launcher:
    """A job on this machine. Making it begins to load torch; `run` starts the workers and returns the exit code."""

    def __init__(self, spec: Spec, output: Callable[[int, selectors.BaseSelector], Output] = Output) -> None:
        self.spec, self.job = spec, JobState(spec.workers, spec.needed, spec.max_restarts)
        self._control, control = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._reports, reports = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._reports.setblocking(False)
        self._selector = selectors.DefaultSelector()
        self._output = output(spec.most, self._selector)
        members = Members(patience_s=spec.patience_s)
        self._registrar = Registrar(spec.name, self._selector, self._scale, members) if spec.elastic else None
        self._port = free_port()
        self._variables: dict[str, str] = {}
        self._running = self._ready = self._server_gone = False
        with control, reports:
            descriptors = control.fileno(), reports.fileno()
            self._server = subprocess.Popen(
                [sys.executable, "-c", _SERVE, *map(str, descriptors), spec.preload, *spec.target.as_arguments()],
                stdin=subprocess.DEVNULL,
                pass_fds=descriptors,
                start_new_session=True,  # a terminal's Ctrl-C reaches us alone, and workers then once
                env=with_variables({"OMP_NUM_THREADS": str(spec.threads_each)}),
            )
        self._handlers = {
            number: signal.signal(number, self._on_signal)
            for number in _SIGNALS
            if signal.getsignal(number) is not signal.SIG_IGN  # nohup, or a shell's `&`, wants it ignored
        }

    def run(self, variables: dict[str, str]) -> int:
        """Starts the workers, with these variables besides the usual ones, and stays until all are gone."""
        members = {} if self._registrar is None else {"GRADTIDE_MEMBERS": self._registrar.address}
        self._variables, self._running = variables | members, True
        self._output.say(describe(self.spec))
        self._selector.register(self._control, selectors.EVENT_READ)
        self._selector.register(self._reports, selectors.EVENT_READ)
        for rank in range(self.spec.workers):
            self._start(rank, 0)
        while self.job.running and not self._server_gone:
            self._turn()
        self.close()
        return self._conclude()

    def _turn(self) -> None:
        for key, _ in self._selector.select(self._patience_s()):
            if key.fileobj is self._control:
                self._hear_server()
            elif key.fileobj is self._reports:
                self._hear_workers()
            elif self._registrar is not None and self._registrar.owns(key.fileobj):
                self._registrar.hear(key.fileobj)
            else:
                self._output.show(key.fd)
        self._regroup()
        self._output.show_progress()
        self._act(self.job.later(time.monotonic()))
        if self._output.reader_gone and not self.job.ending:
            self._on_signal(signal.SIGPIPE, None)

    def _regroup(self) -> None:
        """Whoever asked is told who works together, once all have; who keeps the others waiting is ended."""
        if self._registrar is not None:
            for rank in self._registrar.members.slow(self.job.running, time.monotonic()):
                self._output.say(f"the others wait for worker {rank}, which has not come to the end of its step yet")
            for rank in self._registrar.members.late(self.job.running, time.monotonic()):
                self._output.say(f"worker {rank} does not answer, and the others have waited long enough: it is ended")
                self._forward(signal.SIGKILL, (rank,), 0.0)
            self._registrar.answer(self.job.running)

    def _scale(self, workers: int) -> str:
        """Somebody wants so many workers: starts some, or asks the last to go at the end of a step."""
        assert self._registrar is not None
        staying, (least, most) = self.job.staying, (self.spec.needed, self.spec.most)
        if not least <= workers <= most or self.job.ending:
            return "the job is ending" if self.job.ending else (
                f"{workers} workers are not what this job was started for; it takes {least} to {most} (--min-workers, "
                "--max-workers)"
            )  # fmt: skip
        came = [self.job.grow() for _ in range(workers - len(staying))]
        for rank in came:
            self._registrar.members.added.add(rank)
            self._start(rank, 0)
        went = staying[workers:]
        for rank in went:
            self.job.let_go(rank)
            self._registrar.members.going.add(rank)
        words = [wording.come(came)] if came else [wording.asked_to_go(went)] if went else []
        for line in words:
            self._output.say(line)
        return f"ok: {words[0] if words else f'{workers} workers there are already'}"

    def _patience_s(self) -> float | None:
        deadlines_s = [self.job.deadline_s()]
        if self._registrar is not None:
            deadlines_s.append(self._registrar.members.deadline_s())
        mine = [max(0.0, deadline_s - time.monotonic()) for deadline_s in deadlines_s if deadline_s is not None]
        patience_s = self._output.patience_s()
        return min([*mine, *([] if patience_s is None else [patience_s])], default=None)

    def _hear_server(self) -> None:
        received = receive(self._control, EVENTS)
        self._hear_workers()  # what a worker said, it said before its end
        if received is None:
            self._server_gone = True
        elif isinstance(received[0], Ready):
            self._ready = True
        elif isinstance(received[0], Ended):
            ended = received[0]
            self._output.drain(ended.rank)
            if self._registrar is not None:
                self._registrar.gone(ended.rank)
            self._act(self.job.ended(ended.rank, ended.status, ended.at_s))

    def _hear_workers(self) -> None:
        with contextlib.suppress(BlockingIOError):
            while received := receive(self._reports, EVENTS):
                failure = received[0]
                assert isinstance(failure, Failure)
                self._forward(0, (failure.rank,), _TIDY_S)
                self._act(self.job.reported(failure))

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
        if goes_on:
            self._output.say(wording.lost(failure))

    def _start(self, rank: int, incarnation: int) -> None:
        usual = variables_of(self.spec, self._port, rank, incarnation)
        descriptors = self._output.open(rank)
        with contextlib.suppress(OSError):  # the fork server is gone, and the next turn will notice
            send(self._control, Start(rank, usual | self._variables), descriptors)
        for descriptor in descriptors:
            os.close(descriptor)

    def _forward(self, number: int, ranks: tuple[int, ...], grace_s: float) -> None:
        with contextlib.suppress(OSError):
            send(self._control, Forward(number, ranks, grace_s))

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        """Hands the signal on at once, even if we are stuck writing to somebody who does not read."""
        if not self._running:
            raise SystemExit(128 + number)
        grace_s = 0.0 if self.job.signalled else self.spec.grace_s
        self.job.interrupted(number)
        self._output.give_up_s = time.monotonic() + grace_s
        if self._ready:
            sent = signal.SIGTERM if number == signal.SIGPIPE else number
            self._forward(sent, tuple(self.job.incarnations), grace_s)
        else:
            self._server.kill()  # it is still loading; what it has made dies with it

    def _conclude(self) -> int:
        for failure in wording.also_failed(self.job):
            if failure.traceback:
                self._output.tell(failure.rank, failure.traceback)
        for line in wording.aftermath(self.job):
            self._output.say(line)
        if not self._server_gone or self.job.ending:
            return 128 + self.job.signalled if self._server_gone else self.job.exit_code()
        how = f"exit code {self._server.returncode}; what it wrote is above"
        self._output.say(f"the process that makes workers, and so every worker, has ended ({how})")
        return 1

    def close(self) -> None:
        """Ends whatever is left, and gives signals back to whom they belonged."""
        self._control.close()
        try:
            self._server.wait(_GONE_S)
        except subprocess.TimeoutExpired:
            self._server.kill()
            self._server.wait()
        self._output.close()
        self._reports.close()
        if self._registrar is not None:
            self._registrar.close()
        self._selector.close()
        for number, handler in self._handlers.items():
            signal.signal(number, handler)
        self._handlers = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()
