"""Where the ranks of one host meet: counters and slots in shared memory, and waiting that notices death.

counters   arrivals, one a rank | schedule progress, one a rank | channel heads, n x n | channel tails, n x n
slots      for each rank BUFFERS of SLOT_BYTES: what it shows the others at a meeting
channels   for each ordered pair of ranks CHANNEL_BUFFERS of CHANNEL_BYTES: messages on their way
notes      for each rank: by which number to ask where in its code it is | whether it has left in good order
failures   for each rank: the error that it ended with, as a line
"""

import math
import mmap
import os
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch

from gradtide.collective.host.rank_watch import RankWatch
from gradtide.collective.host.signature import TEXTS, Signature
from gradtide.collective.host.waiting import NOTICE_S, Wait, called, left_or_lost, own_failure, tell_wait
from gradtide.errors import CommunicationError, Mismatch, PeerTimeout
from gradtide.kernels import BUFFERS, DONE, KERNELS, LINE_BYTES, MISMATCHED, WAITING, Line, Me
from gradtide.kernels.futex import futex_wait
from gradtide.processes.whereabouts import ask_whereabouts, close_whereabouts, open_whereabouts
from gradtide.transport.memory import address_of, tensor_over
from gradtide.transport.peer_watch import PeerWatch

__all__ = ["CHANNEL_BUFFERS", "CHANNEL_BYTES", "SLOT_BYTES", "Board", "BoardLayout"]

SLOT_BYTES = 256 * 1024  # of one buffer: what a small message may have, and the piece of a large one
CHANNEL_BUFFERS, CHANNEL_BYTES = 2, 64 * 1024
_PIECE_BYTES = 128 * 1024  # of an ordinary tensor on its way: source, slots and result stay in the second-level cache
_SPLIT_BYTES = 32 * 1024
_LOOK_S = 0.1  # a rank that waits looks this often whether its peers live
_IN_PLACE_BYTES = 8 * 1024
_PAGE = 4096
_FAILURE_BYTES = 512
_WHERE, _LEFT = 0, 1  # what a rank notes


@dataclass(frozen=True, slots=True)
class BoardLayout:
    """Where things are in the shared memory of a group of `size`."""

    size: int

    def arrival(self, rank: int) -> int:
        return LINE_BYTES * rank

    def progress(self, rank: int) -> int:
        return LINE_BYTES * (self.size + rank)

    def head(self, source: int, target: int) -> int:
        return LINE_BYTES * (2 * self.size + source * self.size + target)

    def tail(self, source: int, target: int) -> int:
        return self.head(source, target) + LINE_BYTES * self.size**2

    @property
    def slots(self) -> int:
        return -(-LINE_BYTES * (2 * self.size + 2 * self.size**2) // _PAGE) * _PAGE

    @property
    def channels(self) -> int:
        return self.slots + self.size * BUFFERS * SLOT_BYTES

    @property
    def notes(self) -> int:
        return self.channels + self.size**2 * CHANNEL_BUFFERS * CHANNEL_BYTES

    @property
    def total_bytes(self) -> int:
        return self.failures + _FAILURE_BYTES * self.size

    @property
    def failures(self) -> int:
        return self.notes + LINE_BYTES * self.size


class Board:
    """One rank's view of the meeting place. Only one thread at a time may meet; channels have their own counters."""

    def __init__(self, rank: int, names: Sequence[int], peers: PeerWatch, mapping: mmap.mmap) -> None:
        """names: what each rank of this host is called in errors: its number in the whole job."""
        self._names, size = names, len(names)
        self.watch: RankWatch | None = None  # of a job on several hosts, once there is one
        self.rank, self.size, self.layout, self.peers = rank, size, BoardLayout(size), peers
        self.bytes = tensor_over(mapping, torch.uint8, (self.layout.total_bytes,))
        self.base = address_of(mapping)
        self._lines = self.bytes[: LINE_BYTES * size].view(torch.int64).view(size, -1).numpy()  # arrivals' headers
        self.words = np.zeros(Me.SOURCES + size, np.int64)
        self.me = self.words.ctypes.data
        crowded = size > len(os.sched_getaffinity(0))
        # A pause is some 30 ns, a yield 1 us. Spinning longer gains nothing: a peer that is not there after some us
        # may be waiting for this very core (measured: 100 us an operation when two ranks shared one of two busy cores).
        self.spins, self.yields = (20, 200) if crowded else (120, 100)
        words = self.words
        words[Me.COUNTERS], words[Me.RANK], words[Me.SIZE] = self.base, rank, size
        words[Me.SPINS], words[Me.YIELDS], words[Me.BEARS] = self.spins, self.yields, 2**62 if crowded else 0
        words[Me.SLOTS], words[Me.SLOT_BYTES] = self.base + self.layout.slots, SLOT_BYTES
        words[Me.SPLIT_BYTES], words[Me.PIECE_BYTES] = _SPLIT_BYTES, _PIECE_BYTES
        words[Me.IN_PLACE_BYTES] = _IN_PLACE_BYTES
        self._arrivals = [self.base + self.layout.arrival(other) for other in range(size)]
        self._step, self._before_sleep = KERNELS.STEP.entry, KERNELS.BEFORE_SLEEP.entry
        self._closed = False
        self.notice_s = NOTICE_S
        self.purpose = ""  # what this rank's caller is doing, in the user's words
        self.advice = "make them call the same operation in the same order"  # to who finds others at something else
        notes, failures = self.bytes[self.layout.notes :].split([LINE_BYTES * size, _FAILURE_BYTES * size])
        self._notes = notes.view(torch.int64).view(size, -1).numpy()
        self._failures = failures.view(size, -1).numpy()
        self._notes[rank, _WHERE] = open_whereabouts()
        self._raise, self._spin = KERNELS.RAISE.entry, KERNELS.SPIN.entry

    def close(self, *, in_good_order: bool) -> None:
        """Leaves. A thread of this rank that waits here is told so when it wakes."""
        if not self._closed and self.peers.process == os.getpid():
            close_whereabouts()
            if in_good_order:
                self._notes[self.rank, _LEFT] = 1  # before its sockets close, which is what the others notice
            elif failure := own_failure().encode()[:_FAILURE_BYTES]:
                self._failures[self.rank, : len(failure)] = np.frombuffer(failure, np.uint8)
        self._closed = True
        self.peers.close()

    # --- Meetings ---

    def step(self, signature: Signature, timeout_s: float, segment: int = 0, offset: int = 0) -> None:
        """One meeting of all ranks, who must all have come for the same thing."""
        code = self._step(self.me, signature.number, segment, offset)
        if code != DONE:
            self.finish(code, lambda: self._step(self.me, signature.number, segment, offset), signature, timeout_s)

    def finish(self, code: int, resume: Callable[[], int], signature: Signature, timeout_s: float) -> None:
        """Sees a kernel that did not end at once to its end."""
        now = time.monotonic()
        wait = Wait(self._described(signature), timeout_s, now + self.notice_s, now + timeout_s)
        while code == WAITING:
            self._sleep(self._arrivals, int(self.words[Me.AWAITED]), wait)
            code = resume()
        if code == MISMATCHED:
            self._explain(signature, timeout_s)

    def _described(self, signature: Signature) -> str:
        return f"{signature.text} {self.purpose}" if self.purpose else signature.text

    def shared_by_all(self) -> list[int] | None:
        """After a step: each rank's offset, if all of them came with a tensor in the same shared memory."""
        version = int(self.words[Me.SEQUENCE]) % BUFFERS
        segments = self._lines[:, Line.SEGMENT + version]
        if segments[0] == 0 or (segments != segments[0]).any():
            return None
        return [int(offset) for offset in self._lines[:, Line.OFFSET + version]]

    def next_slot(self) -> torch.Tensor:
        """This rank's slot for the next meeting. It is free: all who read its last content have arrived since."""
        return self._slot(self.rank, int(self.words[Me.SEQUENCE]) + 1)

    def slots(self) -> list[torch.Tensor]:
        """What each rank showed at the last meeting."""
        sequence = int(self.words[Me.SEQUENCE])
        return [self._slot(rank, sequence) for rank in range(self.size)]

    def aim(self, addresses: list[int]) -> None:
        """Says where the kernels find the sources, in rank order."""
        self.words[Me.SOURCES :] = addresses

    def _slot(self, rank: int, sequence: int) -> torch.Tensor:
        begin = self.layout.slots + (rank * BUFFERS + sequence % BUFFERS) * SLOT_BYTES
        return self.bytes[begin : begin + SLOT_BYTES]

    def _explain(self, signature: Signature, timeout_s: float) -> None:
        """Everybody sees a mismatch at the same meeting; at one more they tell each other what they wanted."""
        text = self._described(signature).encode()[:2000]
        self.next_slot()[: len(text) + 1] = torch.tensor([*text, 0], dtype=torch.uint8)
        self.step(TEXTS, timeout_s)
        said = [bytes(slot[:2001].tolist()).split(b"\0")[0].decode(errors="replace") for slot in self.slots()]
        sides = "; ".join(
            f"{self._called([r for r in range(self.size) if said[r] == t])}: {t}" for t in dict.fromkeys(said)
        )
        raise Mismatch(f"the ranks ask for different things ({sides}); {self.advice}")

    # --- Single counters ---

    def post(self, offset: int, value: int) -> None:
        """Raises one of this rank's counters, and wakes who sleeps on it."""
        self._raise(self.base + offset, value)

    def wait(
        self,
        offset: int,
        value: int,
        owner: int,
        what: str,
        timeout_s: float,
        *,
        alone: bool = False,
        look: Callable[[], None] | None = None,
    ) -> None:
        """Waits until `owner` raised a counter to `value`. alone: nobody but the owner matters. look: see Wait."""
        address = self.base + offset
        if self._spin(address, value, self.spins, self.yields) == DONE:
            return
        counters = [0] * self.size
        counters[owner] = address
        now = time.monotonic()
        wait = Wait(what, timeout_s, now + self.notice_s, now + timeout_s, alone, look)
        while self._spin(address, value, 1, 0) != DONE:
            self._sleep(counters, value, wait)

    def reached(self, offset: int, value: int) -> bool:
        """Whether a counter is at `value` already."""
        return int(self._spin(self.base + offset, value, 1, 0)) == DONE

    def _sleep(self, counters: list[int], value: int, wait: Wait) -> None:
        """Sleeps until who is behind may have come, or says who is dead or late. counters: one a rank, 0 for none."""
        behind = [r for r, address in enumerate(counters) if address and self._spin(address, value, 1, 0) != DONE]
        if not behind:
            return
        if self._closed:
            raise CommunicationError(f"the group was closed during {wait.what}; wait for what you ask for")
        if wait.look is not None:
            wait.look()
        watch = None if wait.alone else self.watch
        if watch is not None:
            watch.check()
        # Looked at in this order: who arrived before it died still counts as there.
        gone = set(self.peers.gone())
        lost = [rank for rank in behind if rank in gone and self._spin(counters[rank], value, 1, 0) != DONE]
        if lost:
            left = [rank for rank in lost if self._notes[rank, _LEFT]]
            failures = {self._names[rank]: self._failure_of(rank) for rank in lost}
            raise left_or_lost(self._names[self.rank], self._named(lost), self._named(left), wait.what, failures)
        now = time.monotonic()
        if now >= wait.notice_at and (watch is None or not watch.in_collective):
            self._tell([rank for rank, address in enumerate(counters) if address], behind, wait)
        remaining = wait.deadline - now
        if remaining <= 0 and not (watch is not None and watch.may_go_on(self._called(behind))):
            late = f"{self._called(behind)} did not arrive at {wait.what} within {wait.timeout_s:g} s; is it stuck?"
            raise PeerTimeout(late)
        seen = self._before_sleep(counters[behind[0]])
        if seen < value:
            futex_wait(counters[behind[0]], seen, min(_LOOK_S, remaining) if remaining > 0 else _LOOK_S)

    def _tell(self, expected: list[int], behind: list[int], wait: Wait) -> None:
        """The first of those who are there says, once, who is not."""
        wait.notice_at = math.inf
        there = [rank for rank in expected if rank not in behind]
        if not there or min(there) == self.rank:
            places = {self._names[rank]: ask_whereabouts(int(self._notes[rank, _WHERE])) for rank in behind}
            tell_wait(self._names[self.rank], self.notice_s, self._named(behind), wait.what, places)

    def _failure_of(self, rank: int) -> str:
        return bytes(self._failures[rank]).rstrip(b"\0").decode(errors="replace")

    def check_process(self) -> None:
        if self.peers.process != os.getpid():
            raise CommunicationError("this group was joined by the process that forked this one; join one here")

    def name_of(self, rank: int) -> int:
        """What a rank of this host is called: its number in the whole job."""
        return self._names[rank]

    def _called(self, ranks: list[int]) -> str:
        return called(self._named(ranks))

    def _named(self, ranks: list[int]) -> list[int]:
        return [self._names[rank] for rank in ranks]
