"""A training's keys on the servers: who makes them, who may come, and what newcomers are told.

Besides the keys that gradients go to there are some of our own: the model's outline, which every worker compares with
its own; the round that the training began with; values that nobody steps; and what the script keeps in model.state.
"""

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import msgspec
import torch
from torch import Tensor, nn

from gradtide.errors import ConfigError, PeerTimeout
from gradtide.store import Store
from gradtide.sync.job import Job
from gradtide.sync.servers.averages import as_real
from gradtide.sync.servers.settings import Servers
from gradtide.sync.state import difference, outline
from gradtide.sync.trained import Trained

__all__ = ["FirstNames", "Lodging"]

_LOOK_S = 0.02
_OUTLINE, _FIRST_ROUND, _VALUE, _SCRIPT = "outline of the model", "first round", "value ", "state of the script"
_NEXT_ROUND = "round to go on with"
_SCRIPT_BYTES = 1 << 16

RuleOf = Callable[[str], Any]


class FirstNames:
    """A parameter that gets another name (pruning does that) keeps its key, and what servers know of it."""

    def __init__(self) -> None:
        self._named: dict[int, tuple[str, nn.Parameter]] = {}  # by id

    def follow(self, trained: Trained) -> Trained:
        """The same with the names that keys are called after."""
        for name, parameter in zip(trained.names, trained.parameters, strict=True):
            self._named.setdefault(id(parameter), (name, parameter))
        return replace(trained, names=[self._named[id(parameter)][0] for parameter in trained.parameters])

    def __iter__(self) -> Iterator[tuple[str, nn.Parameter]]:
        """All that were ever trained."""
        return iter(self._named.values())


class Lodging:
    """One worker's view of it. `number` and `size` are those of the job when it began."""

    def __init__(self, store: Store, job: Job, servers: Servers, number: int, size: int) -> None:
        self._store, self._job, self._servers = store, job, servers
        self._number, self._size, self._script = number, size, b""
        self._prefix = f"{servers.name}/" if servers.name else ""
        self.compress_of: Callable[[str], str] = lambda key: ""  # how a key is compressed that gradients go to
        self.clients = frozenset[str]()  # those who began this training, as the store calls them

    def key(self, name: str) -> str:
        return self._prefix + name

    def name(self, key: str) -> str:
        return key.removeprefix(self._prefix)

    # --- moving in ---

    def move_in(
        self,
        trained: Trained,
        keys: Mapping[str, Tensor],
        rule_of: RuleOf,
        loose: Mapping[str, Tensor],
        *,
        whole: bool,
        said: Sequence[str] = (),
    ) -> bool:
        """Worker 0 makes what is not there yet: `keys` have rounds and rules, `loose` ones hold what was assigned last.
        What was `said` of the training must be the same on all workers, too.

        Every worker begins with worker 0's values of what is no key itself: frozen parameters; or, with `whole`, all,
        since the keys are of gradients. Returns whether this worker came later.
        """
        named = trained.everything if whole else [(n, p) for n, p in trained.everything if self.key(n) not in keys]
        values = {self.key(_VALUE + name): as_real(parameter.detach()) for name, parameter in named}
        if self._number == 0:
            self._make([*outline(trained), *said], keys, rule_of, {**loose, **values}, values if whole else {})
        self.wait_for([self.key(_OUTLINE), self.key(_FIRST_ROUND)])
        self._compare([*outline(trained), *said])
        self.wait_for([*keys, *loose, *values])
        later = self._take_place()
        if values:
            self._store.pull(values)
        return later

    def _take_place(self) -> bool:
        """All begin with the same round; who comes later begins with the first round that it is in, and hears what the
        others' scripts keep. Returns whether this worker came later."""
        begun = int(self._store.pull(self.key(_FIRST_ROUND)))
        if self._servers.mode != "async":
            self._store.begin_at(self._wait_for_next_round() if self._all_resume else begun)
            was_there = bool(self._job.ended)  # and knows itself which batches it was given
            self._job.behind = 0 if was_there else max(0, self._store.step - begun)
            if self._job.elastic is None and not self._job.incarnation:
                self._store.wait_for_members(self._size, self._job.timeout_s)
            self.clients = frozenset(member.client for member in self._store.round_members)
        later = bool(self._job.incarnation or self._job.behind)
        if later and self._job.elastic is not None:
            self.hear_script()
        return later

    def _make(
        self,
        own: Sequence[str],
        keys: Mapping[str, Tensor],
        rule_of: RuleOf,
        loose: Mapping[str, Tensor],
        stepped: Mapping[str, Tensor],
    ) -> None:
        """`stepped`: what workers step, of which servers have what it was when the training began."""
        again = self.key(_OUTLINE) in set(self._store.keys())
        if again and not self._servers.resume and not self._job.incarnation:
            what = f"{self._servers.name!r}" if self._servers.name else "a training"
            raise ConfigError(
                f"these servers hold {what} of earlier; say Servers(..., resume=True) to go on with it, or "
                "Servers(..., name='another') to begin a new one beside it"
            )
        if not again and isinstance(self._servers.resume, str):
            raise ConfigError(
                f"{self._servers.resume} says how far the training had come, and its parameters are servers'; these "
                "hold none: start them with it (gradtide run --engine ray --checkpoints FOLDER --resume, gradtide "
                "train --resume, or gradtide restore), or train without resume=True"
            )
        self.make_keys(keys, rule_of)
        there = set(self._store.keys())
        missing = {key: value for key, value in loose.items() if key not in there}
        if not again:
            said = torch.frombuffer(bytearray("\n".join(own).encode()), dtype=torch.uint8)
            # In an elastic job all pull for the second round before they cut a batch: who comes then comes later.
            begun = torch.tensor(self._wait_for_all() + (self._job.elastic is not None))
            missing |= {self.key(_OUTLINE): said, self.key(_FIRST_ROUND): begun}
            if self._job.elastic is not None:
                missing[self.key(_SCRIPT)] = torch.zeros(_SCRIPT_BYTES, dtype=torch.uint8)
        if missing:
            self._store.init(missing, consistency="async")
        if self._all_resume:
            if here := {key: value for key, value in stepped.items() if key in there}:
                self._store.push(here, wait=True)
            next_round = torch.tensor(self._wait_for_all())
            if self.key(_NEXT_ROUND) in there:
                self._store.push(self.key(_NEXT_ROUND), next_round, wait=True)
            else:
                self._store.init(self.key(_NEXT_ROUND), next_round, consistency="async")

    def make_keys(self, keys: Mapping[str, Tensor], rule_of: RuleOf) -> None:
        there = set(self._store.keys())
        for key, value in keys.items():
            if key not in there:
                self._store.init(key, value, update=rule_of(key), compress=self.compress_of(key))

    def make_loose(self, loose: Mapping[str, Tensor]) -> None:
        """Keys that hold what was assigned last."""
        there = set(self._store.keys())
        missing = {key: value for key, value in loose.items() if key not in there}
        if missing:
            self._store.init(missing, consistency="async")

    def _compare(self, own: Sequence[str]) -> None:
        """What worker 0 has built must be what this one has."""
        theirs = bytes(self._store.pull(self.key(_OUTLINE)).tolist()).decode().split("\n")
        if theirs != list(own):
            raise ConfigError(
                f"this worker's model is not the one on the servers: {difference(theirs, own, 'the servers')}; build "
                "the same on all"
            )

    def wait_for(self, keys: Sequence[str]) -> None:
        deadline_s = time.monotonic() + self._job.timeout_s
        while missing := set(keys) - set(self._store.keys()):
            if time.monotonic() > deadline_s:
                key, patience = sorted(missing)[0], f"{self._job.timeout_s:g} s"
                raise PeerTimeout(f"worker 0 has not initialised {key!r} within {patience}; is it stuck?")
            time.sleep(_LOOK_S)

    def _wait_for_all(self) -> int:
        """Until every worker of the job is here; returns the first round that all are in."""
        deadline_s = time.monotonic() + self._job.timeout_s
        while missing := set(range(self._size)) - set(first_rounds := self._first_rounds()):
            if time.monotonic() > deadline_s:
                raise PeerTimeout(
                    f"worker {min(missing)} has not come within {self._job.timeout_s:g} s; did it start, and with the "
                    "same servers?"
                )
            time.sleep(_LOOK_S)
        return max(1, *first_rounds.values())

    @property
    def _all_resume(self) -> bool:
        """Whether all workers come at the same time to go on, so that they have to agree on the round."""
        return bool(self._servers.resume) and self._job.elastic is None and not self._job.incarnation

    def _wait_for_next_round(self) -> int:
        """As worker 0 says, once all are here: it is none before the first that this worker is in."""
        deadline_s, own = time.monotonic() + self._job.timeout_s, self._store.step
        self.wait_for([self.key(_NEXT_ROUND)])
        while (told := int(self._store.pull(self.key(_NEXT_ROUND)))) < own:
            if time.monotonic() > deadline_s:
                raise PeerTimeout(f"worker 0 has not come within {self._job.timeout_s:g} s to go on; is it stuck?")
            time.sleep(_LOOK_S)
        return told

    def _first_rounds(self) -> dict[int, int]:
        """From which round on each worker is in. One that is still about to end its last training has not come."""
        listed = self._store.round_members
        return {member.worker: member.from_round for member in listed if member.client not in self._job.ended}

    # --- what newcomers are told ---

    def tell_script(self) -> None:
        """What the script keeps in model.state is there for who comes later: the first worker says it, when it
        changed."""
        if self._job.elastic is None or self._job.rank:
            return
        try:
            text = msgspec.json.encode((self._job.epoch_began, self._job.state))
        except (TypeError, ValueError) as error:
            raise ConfigError(
                f"model.state holds what can't be told to others ({error}); keep plain values (of a tensor .tolist())"
            ) from None
        if text == self._script:
            return
        if len(text) > _SCRIPT_BYTES:
            raise ConfigError(f"model.state takes {len(text)} bytes as JSON; over servers at most {_SCRIPT_BYTES} fit")
        self._script = text
        padded = text.ljust(_SCRIPT_BYTES, b" ")
        self._store.push(self.key(_SCRIPT), torch.frombuffer(bytearray(padded), dtype=torch.uint8), wait=True)

    def hear_script(self) -> None:
        text = bytes(self._store.pull(self.key(_SCRIPT)).tolist()).strip(b" \0")
        if text:
            self._job.epoch_began, told = msgspec.json.decode(text)
            self._job.state.update(told)
            self._job.resumed = True
