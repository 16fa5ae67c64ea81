"""The order of a DataLoader's batches: worker 0's sampler decides, and all workers load what it says.

Every worker goes over its own sampler too, though only worker 0's counts: so generators that are alike stay alike, and
are where they would be in one process. For that, too, no sampler is read before its time, unless it is one of torch's
own of which we know that nobody can tell the difference.
"""

from collections import deque
from collections.abc import Iterator
from functools import partial
from itertools import chain, islice
from operator import index
from typing import Any, NamedTuple

import msgspec
import numpy as np
import torch
from torch.utils.data import BatchSampler, RandomSampler, SequentialSampler, SubsetRandomSampler, WeightedRandomSampler

from gradtide.collective import Group
from gradtide.errors import ConfigError, DataError, GradtideError
from gradtide.parallel.agreement import (
    comes_and_goes,
    compare_over_store,
    note_loop,
    set_state,
    share_bytes,
    state_of,
    take_up_loop,
    together,
)
from gradtide.parallel.batch_parts import digest
from gradtide.sync import Job

__all__ = ["Order", "batches_ahead", "is_seeded"]

_CHUNK_INDICES = 1 << 20  # that are agreed on at once: 8 MiB
_NEVER = 1 << 62


class _Chunk(NamedTuple):
    """What the leader says is next."""

    items: list[Any]  # what its sampler gave: mostly lists of indices
    ended: bool
    failure: str = ""
    generator: str = ""  # its state where this was drawn, for those who were not there in earlier epochs


class Order(Iterator[Any]):
    """What one iteration's sampler gives, the same for all workers."""

    def __init__(self, job: Job, own: Iterator[Any], sampler: Any) -> None:
        self._job, self._own, self._ahead = job, own, batches_ahead(sampler)
        self._sampler, self._generator, self._drawn_from = sampler, _generator_of(sampler), ""
        self._begun, self._ended = False, False
        self._within = job.inside > 0  # the body of another loop
        self._plan = deque[Any]()  # agreed on, and not asked for yet
        self._asked = deque[Any]()  # asked for by the loader, and not trained on yet
        self._known = -1  # how many of this iteration are agreed on so far; -1: we have just come, and know nothing
        self._skipped = 0  # that the others were given before we came
        self._same = True  # our own sampler would have given just these
        self.skipped_now = 0  # the same, until one was given to us
        self.given = 0  # of those that were asked for, the first ones: of the step that is under way

    def __next__(self) -> Any:
        if not self._begun:
            self._begun = True
            self._begin()
        while not self._plan and not self._ended:
            together(self._job, self._extend)
        if not self._plan:
            raise StopIteration
        self._asked.append(self._plan.popleft())
        return self._asked[-1]

    def _begin(self) -> None:
        """A worker that came later begins where the others are."""
        job, end = self._job, object()
        if comes_and_goes(job):
            known, state = take_up_loop(job, self._generator), state_of(self._generator)
            first = list(islice(self._own, 1))
            told = partial(digest, [_plain(item) for item in first])
            compare_over_store(job, told)
            note_loop(job, told, state, known)
            self._own = chain(first, self._own)
        while job.behind and next(self._own, end) is not end:
            job.behind, job.batches, self._skipped = job.behind - 1, job.batches + 1, self._skipped + 1
        self.skipped_now = self._skipped
        if job.behind:
            self._ended = True
        elif not self.go_on():
            self._known = self._skipped

    def finish(self) -> None:
        """What the loader gave is trained on."""
        for _ in range(self.given):
            self._asked.popleft()
        self.given = self.skipped_now = 0

    # --- what the leader says ---

    @property
    def _counts_nothing(self) -> bool:
        """The step of the batch around this loop was lost: its body, and with it this loop, comes again. The others may
        be done with this pass already."""
        return self._within and self._job.undone > 0

    def _extend(self, group: Group | None) -> None:
        if self._counts_nothing:
            items = [_plain(item) for item in islice(self._own, 1)]
            self._take(_Chunk(items, not items))
        elif self._job.agreed != self._job.generation:  # somebody has died since it was asked for
            self._meet(group)
        elif group is None:
            self._take(self._read(1))
        elif group.rank == 0:
            first = self._known == 0
            told, problem = self._read_or_say(self._ahead[0] if first else self._ahead[1])
            self._take(told)  # before it is told: should we be the only one to know, we tell it again
            share_bytes(group, 0, _encode(told._replace(generator=self._drawn_from if first else "")))
            if problem is not None:
                raise problem
        else:
            self._follow(_decode(share_bytes(group, 0)))

    def _read_or_say(self, most: int) -> tuple[_Chunk, Exception | None]:
        """The others must not wait for what will never come."""
        try:
            return self._read(most), None
        except Exception as error:
            known = isinstance(error, GradtideError)
            return _Chunk([], True, str(error) if known else f"worker 0's sampler failed: {error!r}"), error

    def _read(self, most: int) -> _Chunk:
        if not self._same:
            raise ConfigError(
                "the worker whose sampler gave the order of this epoch is gone, and the others' samplers have another; "
                "let all be alike: DataLoader(..., generator=torch.Generator().manual_seed(0))"
            )
        self._note_generator()
        items, indices = list[Any](), 0
        for item in islice(self._own, most):
            items.append(_plain(item))
            indices += len(items[-1]) if isinstance(items[-1], list | tuple) else 1
            if indices >= _CHUNK_INDICES:
                return _Chunk(items, False)
        return _Chunk(items, len(items) < most)

    def _follow(self, told: _Chunk) -> None:
        """Our own sampler goes along."""
        if told.failure:
            raise DataError(told.failure)
        self._draw_from(told.generator)
        own = [_plain(item) for item in islice(self._own, len(told.items))]
        if told.ended:
            self._same = next(self._own, self) is self and self._same
        self._same = self._same and own == told.items
        self._take(told)

    def _take(self, told: _Chunk) -> None:
        self._plan.extend(told.items)
        self._known, self._ended = self._known + len(told.items), told.ended

    # --- when workers come, go and die ---

    def _note_generator(self) -> str:
        """As it was before this order was drawn."""
        if self._job.elastic is not None:
            self._drawn_from = self._drawn_from or state_of(self._generator)
        return self._drawn_from

    def _draw_from(self, state: str) -> None:
        """As the others do: the order is theirs, too, should we be the one to give it."""
        if state and self._generator is not None:
            self._drawn_from = state
            set_state(self._generator, state)

    def _begin_as(self, state: str) -> None:
        if state and self._generator is not None:
            self._draw_from(state)
            self._own = islice(iter(self._sampler), self._skipped, None)

    def go_on(self) -> bool:
        """Before a batch is given: agrees with those who are there now, if they are not those of the last batch."""
        job = self._job
        if job.elastic is None or job.agreed == job.generation or job.behind or job.held is not None:
            return False
        together(self._job, self._meet)
        return True

    def _meet(self, group: Group | None) -> None:
        """Who knows most tells what is next: a death may find one of us before we are told, another after it."""
        if self._counts_nothing:  # since a moment ago
            return
        if group is not None:
            current = list(self._asked)[self.given - self._job.undone :]
            known = [int(row) for row in group.all_gather(torch.tensor([self._known + self._ended]))]
            root = known.index(max(known))
            ours = _Chunk([*current, *self._plan], self._ended, generator=self._note_generator())
            told = _decode(share_bytes(group, root, _encode(ours) if group.rank == root else b""))
            if group.rank != root:
                if self._known < 0:  # we have just come, and know nothing of earlier epochs
                    self._begin_as(told.generator)
                self._learn(told, len(current))
        self._known = max(self._skipped, self._known)
        self._job.agreed = self._job.generation

    def _learn(self, told: _Chunk, asked: int) -> None:
        news = told.items[asked + len(self._plan) :]
        self._known = max(self._skipped, self._known)
        if news or told.ended != self._ended:
            self._follow(_Chunk(news, told.ended))


# --- samplers ---


def batches_ahead(sampler: Any) -> tuple[int, int]:
    """How many batches may be read ahead, first and later, so that no generator is used sooner or more often."""
    one: Any = sampler.sampler if type(sampler) is BatchSampler else sampler
    size = sampler.batch_size if type(sampler) is BatchSampler else 1
    kind = type(one)
    if kind in (SequentialSampler, SubsetRandomSampler, WeightedRandomSampler):
        return _NEVER, _NEVER  # they draw all when they begin
    if kind is RandomSampler and one.generator is None:
        return _NEVER, _NEVER  # it draws a seed when it begins
    if kind is RandomSampler and not one.replacement and one.num_samples >= len(one.data_source):
        return max(1, len(one.data_source) // size), 1  # at the end it draws once more
    return 1, 1


def is_seeded(sampler: Any) -> bool:
    """Whether a restarted worker can give the order again without asking the others."""
    one = sampler.sampler if type(sampler) is BatchSampler else sampler
    return type(one) is SequentialSampler or _generator_of(sampler) is not None


def _generator_of(sampler: Any) -> torch.Generator | None:
    """What the order is drawn from."""
    one = sampler.sampler if type(sampler) is BatchSampler else sampler
    found = getattr(one, "generator", None)
    return found if isinstance(found, torch.Generator) else None


# --- what goes over the wire ---


def _plain(item: Any) -> Any:
    """Numbers as Python's own, which index alike."""
    if isinstance(item, str | bytes | bool | float | type(None)):
        return item
    if isinstance(item, tuple):
        return tuple(_plain(one) for one in item)
    if isinstance(item, np.ndarray | torch.Tensor) and item.ndim:
        item = item.tolist()
    if isinstance(item, list):
        return [_plain(one) for one in item]
    try:
        return index(item)
    except TypeError:
        raise DataError(
            f"shard can't tell the other workers an index of class {type(item).__name__}; let the sampler give ints, "
            "strings or tuples of them, or say check=False if it gives all workers the same"
        ) from None


def _encode(told: _Chunk) -> bytes:
    sizes = [len(item) if isinstance(item, list) else -1 for item in told.items]
    flat = [one for item in told.items for one in (item if isinstance(item, list) else [item])]
    if all(type(one) is int and abs(one) < _NEVER for one in flat):
        body: Any = np.array(flat, np.int64).tobytes()
    else:
        body = [_mark(one) for one in flat]
    return msgspec.msgpack.encode((np.array(sizes, np.int64).tobytes(), body, told.ended, told.failure, told.generator))


def _decode(data: bytes) -> _Chunk:
    sizes, body, ended, failure, generator = msgspec.msgpack.decode(data)
    flat = np.frombuffer(body, np.int64).tolist() if isinstance(body, bytes) else [_unmark(one) for one in body]
    values, items = iter(flat), list[Any]()
    for size in np.frombuffer(sizes, np.int64).tolist():
        items.append(next(values) if size < 0 else list(islice(values, size)))
    return _Chunk(items, ended, failure, generator)


def _mark(value: Any) -> Any:
    """Lists and tuples are one to msgpack, and not to a Dataset."""
    if isinstance(value, list | tuple):
        return [isinstance(value, tuple), *(_mark(one) for one in value)]
    return value


def _unmark(value: Any) -> Any:
    if isinstance(value, list):
        made = [_unmark(one) for one in value[1:]]
        return tuple(made) if value[0] else made
    return value
