"""Gradients that are compressed on their way to servers and back: which, what that saves, and what is left out of them.

The store does it (docs/store.md). Here is what only a training knows: learning rates, by which what SGD leaves out
counts, and who has died.
"""

import math
import warnings
from collections.abc import Callable, Collection, Mapping
from typing import Any

import torch
from torch import Tensor

from gradtide.calling import users_level
from gradtide.compress import AUTO, Compress
from gradtide.errors import ConfigError
from gradtide.store import Store
from gradtide.store.rules.codecs import encoded_bytes, tag_of
from gradtide.store.rules.updates import SCALE_RESIDUAL, WHOLE_ROUNDS
from gradtide.store.wire.layouts import pieces_of
from gradtide.store.wire.messages import KeySpec, UpdateRule
from gradtide.sync.compressed.state import COUNTS, LEFT, RATE, ResidualRates, left_out, rate_tensor
from gradtide.sync.trained import Trained

__all__ = ["AUTO_OVER_SERVERS", "Smaller"]

_CARRIED, _RESTING, _WINDOW = "carried ", "resting ", "window"  # a checkpoint's names
AUTO_OVER_SERVERS = "compress='auto': none, since nothing predicts the time of servers; name a codec"


class Smaller:
    """One worker's. `settings` None: nothing is compressed, and all of this does nothing."""

    def __init__(
        self, store: Store, settings: Compress | None, *, in_rounds: bool, servers_step: bool, each: str = "step"
    ) -> None:
        """`each`: what sends it all once."""
        self._auto = settings is not None and settings.codec == AUTO
        self._settings = None if self._auto else settings
        self._each = each
        self._store, self._in_rounds, self._servers_step = store, in_rounds, servers_step
        self._rates: dict[str, float] = {}  # by key: the learning rate, but for 0, by which what is left out counts
        self._resting = set[str]()  # keys whose learning rate is 0
        self._known: dict[str, int] = {}  # clients in the rounds, with the first round without each that has said so
        self._carried: dict[str, Tensor] = {}
        self._window = 0.0  # the samples of all workers in the window by which what is left out counts
        self._said = False
        self._begun = False  # whether anything was sent since the servers began, or went back
        self._abandoned = set[str]()  # keys of which servers, too, have left out something that is to count no more

    def __bool__(self) -> bool:
        return self._settings is not None

    def follow(self, trained: Trained, key: Callable[[str], str], never: Collection[str] = ()) -> None:
        """Other parameters are trained from now on. `never`: those that go as they are."""
        self._trained, self._key = trained, key
        self._now = ResidualRates(trained)
        named = [*zip(map(key, trained.names), trained.parameters, strict=True)]
        not_complex = {key for key, parameter in named if not parameter.is_complex()}
        self._keys = not_complex - {key(name) for name in never} if self else set()
        self.sent_bytes = sum(_bytes(key, parameter, self.codec_of(key)) for key, parameter in named)  # one way, a step

    def codec_of(self, key: str) -> str:
        return str(self._settings) if key in self._keys else ""

    def check(self) -> None:
        """Keys that were there before must be compressed as is said now."""
        said = str(self._settings) if self else ""
        for key in sorted(self._keys)[:1] if self else [self._key(name) for name in self._trained.names[:1]]:
            there = self._store.info(key).compress
            if there != said:
                raise ConfigError(
                    f"compress={said or None!r}, but the training on these servers has compress={there or None!r}; say "
                    "the same on all workers, or Servers(..., name='another') to begin a new one"
                )

    # --- what it saves ---

    def describe(self) -> str:
        """int8 both ways: 20 MB a step instead of 80."""
        if self._auto:
            return AUTO_OVER_SERVERS
        if not self:
            return ""
        sent, dense = self.sent_bytes, sum(parameter.nbytes for parameter in self._trained.parameters)
        ways = "both ways" if self._in_rounds else "to the servers, and whole values back, since async has no rounds"
        return f"{self._settings} {ways}: {sent / 1e6:.3g} MB a {self._each} instead of {dense / 1e6:.3g}"

    # --- what is left out ---

    def scale(self, *, led: bool) -> None:
        """Before gradients leave: with SGD, what was left out counts by the rate of its step. `led`: this worker tells
        the servers, where they keep some too."""
        if not self:
            return
        rates = self._now.now(range(len(self._trained.names)))
        self._begun = True
        for index, name in enumerate(self._trained.names):
            key, rate = self._key(name), rates[index]
            if key in self._keys:
                changes = self._change_rate(key, rate)
                if key in self._abandoned:
                    changes[SCALE_RESIDUAL] = 0.0
                if changes and led and not self._servers_step:
                    self._store.configure(key, from_round=self._store.step, **changes)
        self._abandoned.clear()

    def _change_rate(self, key: str, rate: float | None) -> dict[str, Any]:
        """What servers that average must be told. None: no rate counts."""
        changes: dict[str, Any] = {}
        if (rate == 0.0) != (key in self._resting):
            changes[WHOLE_ROUNDS] = rate == 0.0
            self._resting ^= {key}
        if rate is None:
            self._rates.pop(key, None)
        if not rate:
            return changes
        old, self._rates[key] = self._rates.get(key, rate), rate
        if old == rate:
            return changes
        self._store.scale_residuals(old / rate, [key])
        if key in self._carried:
            self._carried[key] *= old / rate
        return {**changes, SCALE_RESIDUAL: old / rate}

    def begin_window(self, samples: float) -> None:
        """Before changes leave that were made with so many samples of all workers, by which servers divide: what was
        left out of a longer or a shorter window is to count what it would have counted there."""
        if self._window and samples != self._window:
            self._store.scale_residuals(samples / self._window, None)
        self._window = samples

    def goes_whole(self, index: int) -> bool:
        """With a learning rate of 0 nothing may be used up that would count later."""
        return bool(self) and self._now.now([index])[index] == 0.0

    def carry(self, key: str, answer: Tensor) -> None:
        """Nobody had a gradient, so nobody steps: what came, left out earlier, counts with the next gradient."""
        if key in self._keys and answer.any():
            self._carried[key] = self._carried[key] + answer if key in self._carried else answer.clone()

    def with_carried(self, key: str, gradient: Tensor) -> Tensor:
        carried = None if key in self._resting else self._carried.pop(key, None)
        return gradient if carried is None else gradient.add_(carried)

    # --- what goes with values that are loaded (`LeftOut`) ---

    @property
    def moment(self) -> int:
        return self._store.step

    def take(self, name: str) -> Any:
        """Servers that average are told with the next gradients, unless they have just begun with a checkpoint."""
        key = self._key(name)
        if key not in self._keys:
            return None
        if self._begun:
            self._abandoned.add(key)
        left = self._store.residuals([key]).get(key)
        self._store.scale_residuals(0.0, [key])
        return left, self._carried.pop(key, None)

    def give_back(self, name: str, taken: Any) -> None:
        if taken is None:
            return
        key, (left, carried) = self._key(name), taken
        self._abandoned.discard(key)
        if left is not None:
            self._store.add_residuals({key: left})
        if carried is not None:
            self._carried[key] = carried

    def went_back(self) -> None:
        """The servers began again with a checkpoint, and have what they had left out then."""
        self._begun = False

    # --- what a checkpoint holds of this worker ---

    def state(self) -> dict[str, Tensor]:
        """What was left out of its gradients, and the rates by which it counts; what servers left out they keep."""
        if not self:
            return {}
        begin = len(self._key(""))
        found = {f"{LEFT}{key[begin:]}": left.flatten() for key, left in self._store.residuals().items()}
        rated = {key[begin:]: rate for key, rate in self._rates.items()}
        names = {name.removeprefix(LEFT) for name in found} | rated.keys()
        found |= {f"{RATE}{name}": rate_tensor(rated.get(name)) for name in names}
        found |= {f"{_CARRIED}{key[begin:]}": answer.clone() for key, answer in self._carried.items()}
        found |= {f"{_RESTING}{key[begin:]}": torch.tensor([True]) for key in self._resting}
        return found | ({_WINDOW: torch.tensor([self._window], dtype=torch.float64)} if self._window else {})

    def load_state(self, state: Mapping[str, Tensor]) -> None:
        """What this worker has left out until now is forgotten."""
        if COUNTS in state:
            raise ConfigError("what compression left out was kept without servers; load it without Servers(...)")
        shapes = {name: parameter.shape for name, parameter in self._trained.everything}
        lefts = left_out(state, self._trained)
        whole = {self._key(name): left.view(shapes[name]) for name, (left, _) in lefts.items()}
        self._store.add_residuals(whole, instead=True)
        named = [(*name.partition(" "), value) for name, value in state.items()]
        rates = {self._key(name): float(value) for kind, end, name, value in named if kind + end == RATE}
        self._rates = {key: rate for key, rate in rates.items() if not math.isnan(rate)}
        self._carried = {self._key(name): value.clone() for kind, end, name, value in named if kind + end == _CARRIED}
        self._resting = {self._key(name) for kind, end, name, _ in named if kind + end == _RESTING}
        self._window = float(state[_WINDOW]) if _WINDOW in state else 0.0

    def leave(self) -> None:
        """This worker goes, and has sent what it had left out with its last gradients, where it had any."""
        begin = len(self._key("")) if self else 0
        lost = sorted(key[begin:] for key, left in self._store.residuals().items() if left.any()) if self else []
        if lost:
            warnings.warn(
                f"this worker goes, and with it what compression had left out of {lost[0]}"
                f"{f' and {len(lost) - 1} others' if lost[1:] else ''}, of which its last step had no gradient",
                stacklevel=users_level(),
            )

    def notice_deaths(self, *, led: bool) -> None:
        """What a worker that was killed had left out is lost."""
        if not self or self._said:
            return
        now = {member.client: member.until for member in self._store.round_members}
        died = any(client not in now and not until for client, until in self._known.items())
        self._known = now
        if died and led:
            self._said = True
            warnings.warn(
                "a worker died, and with it what compression had left out of its gradients so far; the others keep "
                "theirs (said once)",
                stacklevel=users_level(),
            )


def _bytes(key: str, parameter: torch.nn.Parameter, codec: str) -> int:
    parts = torch.view_as_real(parameter) if parameter.is_complex() else parameter
    dtype = str(parts.dtype).removeprefix("torch.")
    spec = KeySpec(key, tuple(parts.shape), dtype, UpdateRule("mean"), 0, compress=tag_of(codec))
    return sum(piece.size_bytes for piece in pieces_of(spec, None, encoded_bytes))
