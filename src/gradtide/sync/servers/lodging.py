"""A training's keys on the servers: who makes them, and who may come.

Besides the keys that gradients go to there are some of our own: the model's outline, which every worker compares with
its own; the round that the training began with; values that nobody steps; and what newcomers are told.
"""

import hashlib
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from gradtide.errors import ConfigError, PeerTimeout
from gradtide.store import Store
from gradtide.sync.job import Job
from gradtide.sync.servers.averages import as_real
from gradtide.sync.servers.newcomers import SCRIPT, SCRIPT_BYTES, Newcomers
from gradtide.sync.servers.settings import Servers
from gradtide.sync.state import difference, outline
from gradtide.sync.trained import Trained

__all__ = ["FirstNames", "Lodging"]

_LOOK_S = 0.02
_OUTLINE, _FIRST_ROUND, _VALUE = "outline of the model", "first round", "value "
_NEXT_ROUND, _JOB = "round to go on with", "job that trains"

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
        self._number, self._size = number, size
        self._prefix = f"{servers.name}/" if servers.name else ""
        self.newcomers = Newcomers(store, job, number, self._prefix)
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
        Should it die before that, the first of those who live does. What was `said` of the training must be the same on
        all workers, too.

        Every worker begins with worker 0's values of what is no key itself: frozen parameters; or, with `whole`, all,
        since the keys are of gradients. Returns whether this worker came later.
        """
        named = trained.everything if whole else [(n, p) for n, p in trained.everything if self.key(n) not in keys]
        values = {self.key(_VALUE + name): as_real(parameter.detach()) for name, parameter in named}
        own = [*outline(trained), *said]
        if self._number == 0:
            self._make(own, keys, rule_of, {**loose, **values}, values if whole else {})
        wanted = [self.key(_OUTLINE), self.key(_FIRST_ROUND), *keys, *loose, *values]
        self.wait_for(wanted, lambda: self._make(own, keys, rule_of, {**loose, **values}, {}))
        self._compare(own)
        later = self._take_place()
        if values:
            self._store.pull(values)
        return later

    def _take_place(self) -> bool:
        """All begin with the same round; who comes later begins with the first round that it is in. Returns whether
        this worker came later."""
        begun = int(self._store.pull(self.key(_FIRST_ROUND)))
        if self._servers.mode != "async":
            self._store.begin_at(self._wait_for_next_round() if self._all_resume else begun)
            was_there = bool(self._job.ended)  # and knows itself which batches it was given
            self._job.behind = 0 if was_there else max(0, self._store.step - begun)
            if self._job.elastic is None and not self._job.incarnation:
                self._store.wait_for_members(self._size, self._job.timeout_s)
            self.clients = frozenset(member.client for member in self._store.round_members)
        return bool(self._job.behind) or (self._servers.mode == "async" and bool(self._job.incarnation))

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
        if again and not self._servers.resume and not self._job.incarnation and self._number == 0:
            self._refuse_earlier()
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
                missing[self.key(SCRIPT)] = torch.zeros(SCRIPT_BYTES, dtype=torch.uint8)
        if self._job.elastic is not None:
            self._say(self.key(_JOB), self._job_number)
        if missing:
            self._store.init(missing, consistency="async")
        if self._all_resume:
            if here := {key: value for key, value in stepped.items() if key in there}:
                self._store.push(here, wait=True)
            self._say(self.key(_NEXT_ROUND), torch.tensor(self._wait_for_all()))

    def _say(self, key: str, value: Tensor) -> None:
        """What is there was said before."""
        if key in set(self._store.keys(key)):
            self._store.push(key, value, wait=True)
        else:
            self._store.init(key, value, consistency="async")

    @property
    def _job_number(self) -> Tensor:
        """Which job this is: a training of another one is of earlier."""
        assert self._job.elastic is not None
        digest = hashlib.blake2b(self._job.elastic.name.encode(), digest_size=7).digest()
        return torch.tensor(int.from_bytes(digest, "little"))

    def _refuse_earlier(self) -> None:
        what = f"{self._servers.name!r}" if self._servers.name else "a training"
        raise ConfigError(
            f"these servers hold {what} of earlier; say Servers(..., resume=True) to go on with it, or "
            "Servers(..., name='another') to begin a new one beside it"
        )

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
        """What worker 0 has built, for this job, must be what this one has."""
        if self._job.elastic is not None and not self._servers.resume:
            of = self.key(_JOB)
            if of not in set(self._store.keys(of)) or not torch.equal(self._store.pull(of), self._job_number):
                self._refuse_earlier()
        theirs = bytes(self._store.pull(self.key(_OUTLINE)).tolist()).decode().split("\n")
        if theirs != list(own):
            raise ConfigError(
                f"this worker's model is not the one on the servers: {difference(theirs, own, 'the servers')}; build "
                "the same on all"
            )

    def wait_for(self, keys: Sequence[str], make: Callable[[], None] = lambda: None) -> None:
        """Whoever has become the first of those who live `make`s what is missing."""
        deadline_s, elastic = time.monotonic() + self._job.timeout_s, self._job.elastic
        while missing := set(keys) - set(self._store.keys()):
            if elastic is not None and self._number == min(elastic.living(self._job.timeout_s)):
                make()
            if time.monotonic() > deadline_s:
                key, patience = sorted(missing)[0], f"{self._job.timeout_s:g} s"
                raise PeerTimeout(f"worker 0 has not initialised {key!r} within {patience}; is it stuck?")
            time.sleep(_LOOK_S)

    def _wait_for_all(self) -> int:
        """Until every worker of the job is here; returns the first round that all are in."""
        deadline_s = time.monotonic() + self._job.timeout_s
        while missing := self._awaited() - set(first_rounds := self._first_rounds()):
            if time.monotonic() > deadline_s:
                raise PeerTimeout(
                    f"worker {min(missing)} has not come within {self._job.timeout_s:g} s; did it start, and with the "
                    "same servers?"
                )
            time.sleep(_LOOK_S)
        return max(1, *first_rounds.values())

    def _awaited(self) -> set[int]:
        elastic = self._job.elastic
        return set(range(self._size)) if elastic is None else elastic.living(self._job.timeout_s)

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
