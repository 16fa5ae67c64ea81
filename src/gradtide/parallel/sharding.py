"""Each worker's part of every batch."""

import warnings
from collections.abc import Iterable, Iterator, Sequence, Sized
from typing import Any

import torch

from gradtide.calling import check_flags, refuse_foreign_names
from gradtide.errors import ConfigError
from gradtide.parallel.agreed_shares import AgreedShares
from gradtide.parallel.batch_parts import count_samples, cut
from gradtide.parallel.reading.draws import OwnDraws, Watched
from gradtide.parallel.reading.eligible import Read, describe_reading, has_agreeable_order, why_whole
from gradtide.parallel.reading.loaders import AgreedBatches, GivenBatches, refuse_cut_loader
from gradtide.parallel.reading.own_part import OwnPart
from gradtide.parallel.reading.part_batch import PartBatch
from gradtide.parallel.reading.part_reader import PartReader
from gradtide.parallel.reading.replay import seed_of_worker
from gradtide.sync import Job, current_job
from gradtide.sync.job import BatchShare

__all__ = ["shard"]

_OF_SAMPLERS = {
    "dataset sampler data": "it is given the loader of global batches, first: shard(loader)",
    "batch_size drop_last num_workers collate_fn shuffle seed": "it belongs to the DataLoader that shard is given",
    "rank num_replicas world_size workers": "a worker finds its job by itself, under gradtide run or torchrun",
}
_ELASTIC = "in a job that may lose or gain workers"
_BY_PLACE = (
    f"a step over several batches: {_ELASTIC} its last one must be told by their place, which is the same on all "
    "workers: for three, (batches.place + 1) % 3 == 0 or batches.place + 1 == len(batches), with batches = "
    "gradtide.shard(loader); a counter of the loop's own begins anew in a worker that comes later, and counts a batch "
    "twice that comes again"
)
_BEYOND = (
    f"gradients of this loop's last batches are in no step yet: {_ELASTIC} a step must be taken within the loop over "
    "gradtide.shard that gave its batches, so that they can be given again; step with the last batch, too, where "
    "batches.place + 1 == len(batches)"
)
_SIDE_BY_SIDE = (
    f"two loops over gradtide.shard go side by side: {_ELASTIC} one that comes later could not tell how far each of "
    "them is; zip the loaders inside of one shard"
)
_ROUNDS = (
    f"a step over several batches: over servers, {_ELASTIC}, each batch of gradtide.shard must be a step, for a worker "
    "that comes later finds its place by counting steps; take larger batches and cut them within the loop, or train "
    "without servers"
)
_KEPT = "_gradtide_shares"  # on a loader: what is known of the workers' speeds


class shard(Iterable[Any]):
    """Iterates over a loader of global batches, and gives this worker its part of each batch.

    Tensors and arrays whose first dimension counts samples are cut, and so are lists of plain values, one for each
    sample. The contents of dicts, tuples, dataclasses and lists of tensors are cut in the same way. Name values that
    every worker is to get whole, by key, by place, or by the path to them:
    `whole=["class_weights", "1", "extra.weights"]`.

    Parts differ by one sample at most; with `balance=True` they follow the measured speed of each worker, so that all
    are done at the same time. The model weighs them, so together they are exactly the batch. If a small last batch has
    no sample for a worker, that worker gets one that counts nothing.

    All workers must go over the same batches. In a DataLoader over a Dataset with a length, all take the order that
    worker 0's sampler gives. The first batch of any other iterable is compared between workers, and a difference is
    refused. `check=False` does neither: then the loaders must give all workers the same by themselves.

    Where the result is the same, a worker reads only its own part of each batch: from a DataLoader over a Dataset with
    a length and torch's own collate function. `read="part"` says that a collate function of yours may be given a part
    alone, and that each worker may draw random numbers of its own while it reads; `read="whole"` reads all and cuts.
    """

    @refuse_foreign_names(_OF_SAMPLERS, "say shard(loader), and the others by name")
    def __init__(
        self,
        loader: Iterable[Any],
        *,
        whole: Sequence[str] = (),
        check: bool = True,
        balance: bool | AgreedShares = False,
        read: Read = None,
        job: Job | None = None,
    ) -> None:
        if isinstance(loader, torch.Tensor | torch.nn.Module | str) or not (
            hasattr(loader, "__iter__") or hasattr(loader, "__getitem__")
        ):
            raise ConfigError(
                f"shard: a loader of global batches is needed, not {type(loader).__name__}; say "
                "shard(DataLoader(dataset, batch_size=64))"
            )
        if isinstance(loader, tuple) and loader and all(isinstance(one, torch.Tensor) for one in loader):
            raise ConfigError(
                "shard: a tuple of tensors is one batch, not a loader of batches; say "
                "shard(DataLoader(TensorDataset(*tensors), batch_size=64))"
            )
        check_flags("shard", check=check)
        if not isinstance(whole, Iterable):
            raise ConfigError(f"shard: whole={whole!r} makes no sense; say whole=['class_weights']")
        if isinstance(whole, str):
            raise ConfigError(f"shard: whole= is a list of names; say whole=[{whole!r}]")
        refuse_cut_loader(loader)
        self._loader, self._whole, self._check = loader, tuple(whole), check
        self._job = current_job() if job is None else job
        self._shares = _find_shares(self._job, loader) if balance is True else (balance or None)
        if not isinstance(balance, bool | AgreedShares):
            raise ConfigError(f"shard: balance={balance!r}; say True or False")
        self._own = OwnPart(self._job, self._shares)
        self._read, self._why_whole = read, why_whole(loader, read, self._whole, check)
        self._place, self._placed = -1, False  # of the batch that is worked on, and whether the program has asked

    def __len__(self) -> int:
        return len(self._loader)  # type: ignore[arg-type]

    @property
    def place(self) -> int:
        """How many batches of this iteration come before the one that is worked on: what `enumerate` gives in one
        process, also to a worker that came later, and when a batch comes again whose step was lost with a worker."""
        self._placed = True
        return self._place

    def __iter__(self) -> Iterator[Any]:
        job, batches, this = self._job, self._batches(), object()
        if job.inside:
            yield from self._within(batches, this)
            return
        job.admit()
        self._look_at_window()
        step: list[Any] = []  # what was given of the step that is under way, and may have to be given again
        at, self._place = 0, -1
        self._check_loop_is_whole(first=True)
        try:
            for batch in batches:
                at -= self._go_back(batches, step, at) if job.undone else 0
                if not step:
                    job.begin_step()
                    job.arrive()
                    job.past_edits, self._place = 0, self._place + batches.skipped
                step.append(batch)
                while at < len(step):
                    self._check_placed(begins=not at)
                    job.batches, self._place, self._placed, at = job.batches + 1, self._place + 1, False, at + 1
                    yield from self._give(step[at - 1], this)
                    at -= self._go_back(batches, step, at)
                if job.elastic is None or not job.keeps_gradients:
                    batches.finish()
                    step.clear()
                    at = 0
            self._check_loop_is_whole(first=False)
            if not job.behind:
                job.arrive()
        finally:
            self._leave(this)

    def _within(self, batches: AgreedBatches | GivenBatches, this: object) -> Iterator[Any]:
        """A loop in the body of another one, to evaluate, say: its batches come again with those of the other."""
        self._place = -1
        try:
            for batch in batches:
                self._place += 1
                yield from self._give(batch, this)
                batches.finish()
        finally:
            self._leave(this)

    def _leave(self, loop: object) -> None:
        job = self._job
        if self._shares is not None:
            self._shares.leave()
        job.shares.pop(loop, None)
        job.share = next(reversed(job.shares.values()), None)  # of a loop around this one

    def _go_back(self, batches: AgreedBatches | GivenBatches, step: Sequence[Any], at: int) -> int:
        """Agrees with those who came meanwhile on what is next. Returns how many batches come again, since their step
        was lost with a worker; they are cut for those who are there now."""
        job = self._job
        if job.inside and job.elastic is not None and job.meets and not job.in_windows:
            raise ConfigError(_SIDE_BY_SIDE)
        job.take_back()
        job.admit()
        if job.take_back() > at:
            raise ConfigError(_BEYOND)
        batches.go_on(step[at - max(1, job.undone)])
        again, job.undone = job.take_back(), 0
        job.batches, self._place = job.batches - again, self._place - again
        return again

    def _check_placed(self, *, begins: bool) -> None:
        """Where workers die and come, a step over several batches is one only if all count them alike."""
        job = self._job
        if begins or job.elastic is None:
            return
        if job.by_rounds:
            raise ConfigError(_ROUNDS)
        if not self._placed:
            raise ConfigError(_BY_PLACE)

    def _check_loop_is_whole(self, *, first: bool) -> None:
        """A step that is not over when a loop is can't be taken again, for its batches can't be given again."""
        job = self._job
        if job.elastic is None or job.in_windows or not (job.undone or job.keeps_gradients):
            return
        if job.undone or not first:
            raise ConfigError(_BEYOND)

    def _look_at_window(self) -> None:
        """Said once: a window that is longer than an epoch may not be what was meant."""
        batches = _count_batches(self._loader)
        if batches is not None and batches < self._job.window:
            warnings.warn(
                f"Local({self._job.window}): there are {batches} batches here, so workers have not met at the end of "
                "an epoch; meet more often, or call model.meet() where they are to be alike",
                stacklevel=3,
            )
            self._job.window = 0

    def _batches(self) -> AgreedBatches | GivenBatches:
        job = self._job
        if self._check and has_agreeable_order(self._loader) and (job.size > 1 or job.elastic is not None):
            job.reading = describe_reading(self._loader, self._read, self._why_whole)
            return AgreedBatches(self._loader, job, None if self._why_whole else self._reader())
        job.reading = ""
        return GivenBatches(self._loader, job, self._check)

    def _reader(self) -> PartReader:
        seed = seed_of_worker(torch.initial_seed() + self._job.batches, self._job.number)
        return PartReader(self._loader, self._own.expect, seed, OwnDraws(seed) if self._read == "part" else Watched())

    def _give(self, batch: Any, loop: object) -> Iterator[Any]:
        part, shares = self._part(batch, loop), self._shares
        self._job.inside += 1
        try:
            if shares is not None:
                shares.begin()
            yield part
            if shares is not None:
                shares.end()
        finally:
            self._job.inside -= 1

    def _part(self, batch: Any, loop: object) -> Any:
        job, read = self._job, isinstance(batch, PartBatch)
        samples = len(batch.indices) if read else count_samples(batch, self._whole)
        begin, end = self._own.decide(samples)
        job.share = job.shares[loop] = BatchShare(end - begin, samples)
        first, last = (0, 1) if begin == end else (begin, end)
        return batch.take(first, last) if read else cut(batch, first, last, self._whole)


def _count_batches(loader: Iterable[Any]) -> int | None:
    """Of an epoch, where that is known; a DataLoader over an IterableDataset has a length that it may not know."""
    try:
        return len(loader) if isinstance(loader, Sized) else None
    except TypeError:
        return None


def _find_shares(job: Job, loader: Iterable[Any]) -> AgreedShares:
    """Those of earlier loops over the same loader: an epoch begins with what the last one knew. What can't keep them (a
    list, a generator) takes those of the last loop."""
    kept = getattr(loader, "__dict__", None)
    known: tuple[Job, AgreedShares] | None = kept.get(_KEPT) if kept is not None else None
    if known is not None and known[0] is job:
        return known[1]
    if kept is None and isinstance(job.balance, AgreedShares):
        return job.balance
    shares = AgreedShares(job)
    if kept is not None:
        kept[_KEPT] = job, shares
    return shares
