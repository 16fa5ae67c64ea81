"""What workers who come later are told: where the script is, in which order batches come, and what optimizers have.

The first worker keeps what the script says on the servers. Besides, all who were there before tell a newcomer how
things stand at the first step that it is in, before the round of that step can close: whoever of them dies meanwhile.
"""

import time
from typing import Any

import msgspec
import torch
from torch import Tensor

from gradtide.errors import ConfigError, PeerTimeout
from gradtide.store import Store
from gradtide.store.wire.messages import Member
from gradtide.sync.job import Job, LoopBegin
from gradtide.sync.state import adopt_options, plain_options, share_steps
from gradtide.sync.trained import Trained

__all__ = ["SCRIPT", "SCRIPT_BYTES", "Newcomers"]

_LOOK_S = 0.02
SCRIPT, SCRIPT_BYTES = "state of the script", 1 << 16
_FOR, _HELD = "told worker ", "what workers hold, in so many bytes: "


class _Text(msgspec.Struct, frozen=True, array_like=True):
    """How things stand."""

    epoch_began: int
    script: dict[str, Any]
    loops: list[LoopBegin] = []
    step: int = 0  # which comes next; 0: at some time
    options: list[dict[str, Any]] = []  # a group each
    held_bytes: int = 0  # of what workers hold, where servers only average


class Newcomers:
    """One worker's part in it. `number` is its own; `prefix` is that of the training's keys."""

    def __init__(self, store: Store, job: Job, number: int, prefix: str) -> None:
        self._store, self._job, self._number, self._prefix = store, job, number, prefix
        self._said = b""

    # --- who tells ---

    def tell_script(self) -> None:
        """The first worker says what the script keeps in model.state, when it changed."""
        if self._job.elastic is None or self._job.rank:
            return
        text = _encode(_Text(self._job.epoch_began, self._job.state, self._job.loops))
        if text != self._said:
            self._said = text
            self._store.push(self._prefix + SCRIPT, _padded(text), wait=True)

    def tell(self, trained: Trained, *, held: bool) -> None:
        """Before the round of this step can close. `held`: workers have the parameters, and servers don't."""
        self.tell_script()
        step = self._store.step
        members = self._store.round_members if self._job.elastic is not None else ()
        came = [member.worker for member in members if member.from_round == step]
        if not came or self._number in came:
            return
        held_bytes = self._record(trained).size_bytes if held else 0
        options = [plain_options(group) for group in trained.groups]
        job = self._job
        text = _Text(job.epoch_began, job.state, job.loops, step, options, held_bytes)
        for worker in came:
            _say(self._store, f"{self._prefix}{_FOR}{worker}", _padded(_encode(text)))

    def leave(self, trained: Trained) -> None:
        """Before this worker ends: one that was started again when all have come to the end takes what they have."""
        if self._job.elastic is not None:
            tape = self._record(trained)
            text = _Text(self._job.epoch_began, self._job.state, self._job.loops, held_bytes=tape.size_bytes)
            self._store.push(self._prefix + SCRIPT, _padded(_encode(text)), wait=True)

    def _record(self, trained: Trained) -> "Tape":
        tape = Tape()
        share_steps(trained, tape)
        _say(self._store, f"{self._prefix}{_HELD}{tape.size_bytes}", tape.whole())
        return tape

    # --- who hears ---

    def hear_script(self) -> None:
        """What was said last."""
        text = self._read(self._prefix + SCRIPT)
        if text is not None:
            self._take(text)

    def hear(self, trained: Trained, *, held: bool) -> None:
        """How things stand at the step that this worker begins with; or what was said last, if nobody is left."""
        text = self._wait_for_text() or self._read(self._prefix + SCRIPT) or _Text(0, {})
        if held and not text.held_bytes:
            raise ConfigError(
                "this worker comes later, and nobody is left who could tell it the parameters: servers that only "
                "average don't hold them; use an elementwise optimizer without clip_norm, so that they do"
            )
        self._take(text)
        for mine, theirs in zip(trained.groups, text.options, strict=False):  # none, if nobody is left
            adopt_options(mine, theirs)
        if held:
            share_steps(trained, Tape(self._store.pull(f"{self._prefix}{_HELD}{text.held_bytes}")))

    def _wait_for_text(self) -> _Text | None:
        step, key = self._store.step, f"{self._prefix}{_FOR}{self._number}"
        deadline_s = time.monotonic() + self._job.timeout_s
        while True:
            others = any(self._was_there(member, step) for member in self._store.round_members)
            text = self._read(key)
            if text is not None and text.step == step:
                return text
            if not others:
                return None
            if time.monotonic() > deadline_s:
                raise PeerTimeout(f"nobody has told this worker within {self._job.timeout_s:g} s where the others are")
            time.sleep(_LOOK_S)

    def _was_there(self, member: Member, step: int) -> bool:
        return member.from_round < step and member.worker != self._number and not 0 < member.until <= step

    def _read(self, key: str) -> _Text | None:
        if key not in set(self._store.keys(key)):
            return None
        text = bytes(self._store.pull(key).tolist()).strip(b" \0")
        return msgspec.json.decode(text, type=_Text) if text else None

    def _take(self, text: _Text) -> None:
        job = self._job
        job.epoch_began, job.loops, job.resumed = text.epoch_began, text.loops, True
        job.state.update(text.script)


class Tape:
    """One worker records on it what it would broadcast to a group, and another, who is given it, hears that."""

    def __init__(self, recorded: Tensor | None = None) -> None:
        self.rank, self.size_bytes = int(recorded is not None), 0
        self._pieces: list[Tensor] = [] if recorded is None else [recorded]

    def broadcast(self, tensor: Tensor, root: int = 0) -> Tensor:
        begin, self.size_bytes = self.size_bytes, self.size_bytes + tensor.nbytes
        if self.rank == root:
            self._pieces.append(tensor.detach().contiguous().cpu().flatten().view(torch.uint8).clone())
        elif tensor.nbytes:
            piece = self._pieces[0][begin : self.size_bytes].clone().view(tensor.dtype)
            tensor.copy_(piece.view(tensor.shape))
        return tensor

    def whole(self) -> Tensor:
        return torch.cat(self._pieces)


def _say(store: Store, key: str, value: Tensor) -> None:
    if key not in set(store.keys(key)):
        store.init(key, torch.zeros_like(value), consistency="async")
    store.push(key, value, wait=True)


def _encode(text: _Text) -> bytes:
    try:
        encoded = msgspec.json.encode(text)
    except (TypeError, ValueError) as error:
        raise ConfigError(
            f"model.state holds what can't be told to others ({error}); keep plain values (of a tensor .tolist())"
        ) from None
    if len(encoded) > SCRIPT_BYTES:
        raise ConfigError(f"model.state takes {len(encoded)} bytes as JSON; over servers at most {SCRIPT_BYTES} fit")
    return encoded


def _padded(text: bytes) -> Tensor:
    return torch.frombuffer(bytearray(text.ljust(SCRIPT_BYTES, b" ")), dtype=torch.uint8)
