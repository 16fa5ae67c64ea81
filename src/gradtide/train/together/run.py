"""fit's run as one worker of a job: the same loop, with our part of every batch and one model for all workers."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, TypeVar

import msgspec
import torch
from torch import nn

from gradtide.collective import Group
from gradtide.compress import AUTO
from gradtide.errors import ConfigError, RolledBack
from gradtide.even_share import even_share
from gradtide.events import CompressionDecided, Emit, Event, ParametersUpdated
from gradtide.parallel import Device, DeviceBatch, DevicePool, FirstEdited, shard, train_part
from gradtide.parallel.agreed_shares import NOBODY_WAITS, AgreedShares
from gradtide.parallel.devices.batch_norm import NormExchange
from gradtide.parallel.devices.batches import split_pieces
from gradtide.parallel.devices.losses import Loss
from gradtide.parallel.devices.nested import cut_rows, length
from gradtide.parallel.devices.pieces import dealt, even_pieces, take_rows
from gradtide.parallel.devices.step import BatchResult, spread_parameters
from gradtide.parallel.reading.draws import FirstWatched
from gradtide.parallel.reading.own_part import OwnPart
from gradtide.parallel.reading.part_batch import PartBatch
from gradtide.parallel.reading.part_reader import PartReader
from gradtide.parallel.reading.replay import seed_of_worker
from gradtide.parallel.workers_norm import WorkersMeeting, refuse_batch_norm
from gradtide.store import Store
from gradtide.store.rules.updates import is_elementwise
from gradtide.sync import Job, Local, Servers
from gradtide.sync.choose import Wishes
from gradtide.sync.compressed.predict import ONE_WORKER
from gradtide.sync.servers.smaller import AUTO_OVER_SERVERS
from gradtide.sync.synchroniser import Synchroniser
from gradtide.sync.trained import find_trained, has_stepped
from gradtide.train.evaluation import Evaluation, add_evaluations, evaluate_replicas
from gradtide.train.keeper import Keeper
from gradtide.train.optimizers import Optimizers
from gradtide.train.position import History, Position
from gradtide.train.run import Run
from gradtide.train.source import Batch, BatchSource, StepBatch, StepSource, alike, as_first_worker
from gradtide.train.steering.outputs import gather_rows
from gradtide.train.together.own_parts import as_step, loader_of_parts, read_parts
from gradtide.train.together.telling import tell

__all__ = ["RunTogether"]

T = TypeVar("T")


class RunTogether(Run):
    """The first replica is the one that the job knows; the others follow it."""

    synchroniser: Synchroniser

    def __init__(
        self,
        joined: tuple[Job, Wishes, Emit],
        model: nn.Module,
        devices: Sequence[Device],
        pool: DevicePool,
        loss: Loss,
        strategy: str,
        sync_batch_norm: bool,
        seed: int,
    ) -> None:
        self._job, self._wishes, self._emit = joined
        if sync_batch_norm:
            refuse_batch_norm(self._job, self._wishes.sync)
        self._seed, own_seed = seed, seed * self._job.size + self._job.rank  # workers draw different random numbers
        self._lost = False  # whether the servers have lost something that was not seen to yet
        self._before = 0  # batches before this epoch
        self._agreed: AgreedShares | None = None  # the workers' shares, where they follow speed
        self._norms: WorkersMeeting | None = None
        super().__init__(model, devices, pool, loss, strategy, sync_batch_norm, own_seed)

    def _meeting(self) -> NormExchange:
        """Where batch normalisation meets: the devices of all workers."""
        group = self._job.group
        if group is None:
            return super()._meeting()
        self._norms = WorkersMeeting(self.pool.meeting, group.part(range(group.size)), len(self.replicas))
        return self._norms

    def balance(self) -> None:
        sync = self._wishes.sync
        if isinstance(sync, Servers) and sync.mode == "async":
            raise ConfigError(NOBODY_WAITS)
        super().balance()
        self._agreed = AgreedShares(self._job)
        self._job.least_part = len(self.replicas) * self.least_part

    def start(self, made_by: Optimizers, keeper: Keeper) -> None:
        first, self.made_by = self.replicas[0].module, made_by
        self.optimizers = [keeper.load_optimizer(made_by.make(first))]
        wishes, sync = self._wishes, self._wishes.sync
        if isinstance(sync, Servers) or (isinstance(sync, Local) and sync.over is not None):
            self.steering.callbacks.check_over_servers()
        if isinstance(sync, Servers) and is_elementwise(self.optimizers[0]) and has_stepped(self.optimizers[0]):
            raise ConfigError(
                f"{type(self.optimizers[0]).__name__} has state of earlier steps, but servers that step begin without; "
                "give fit a new optimizer, or train without servers"
            )
        emit = self._emit if len(self.replicas) == 1 else _until_spread(self._emit)
        if self.steering.clip_norm is not None and isinstance(sync, Local):
            raise ConfigError(
                "clip_norm= is of the gradient of all workers, which nobody has while each steps by itself (Local); "
                "leave one of them out"
            )
        trained = find_trained(first, self.optimizers[0], self.steering.clip_norm)
        if isinstance(sync, Servers) and keeper.resumed is not None:  # they began with a checkpoint, and so do we
            wishes = replace(wishes, sync=replace(sync, resume=True if keeper.has_model else keeper.resumed.address))
        self.synchroniser = Synchroniser(trained, self._job, wishes, emit)
        if isinstance(sync, Local):  # the optimizer's state was made worker 0's, and is each worker's own
            keeper.load_optimizer(self.optimizers[0])
        self.load_sync_state(keeper.sync_state())
        if wishes.compression is not None and wishes.compression.settings.codec == AUTO:
            alone = ONE_WORKER if self.synchroniser.way.is_collective else AUTO_OVER_SERVERS
            self._emit(CompressionDecided(wishes.compression.decided or alone))
        spread_parameters(self.replicas, self.pool)

    def finish(self) -> None:
        self.synchroniser.finish()

    def close(self) -> None:
        if self._norms is not None:
            self._norms.close()
        self.synchroniser.close()

    @property
    def is_lone(self) -> bool:  # type: ignore[override]
        return not self.synchroniser.way.is_collective

    @property
    def is_main(self) -> bool:  # type: ignore[override]
        """The first of those who are there: another one when it has died. Over servers, of the last step."""
        return self._job.rank == 0 if self.synchroniser.way.is_collective else self.synchroniser.way.led

    @property
    def agrees(self) -> bool:
        """Not over servers, where each knows its own part; nor where one may die while they add up, or come later."""
        return not self.is_lone and self._job.elastic is None

    def _any_says(self, this_one: bool) -> bool:
        said = torch.tensor([int(this_one)])
        return self.synchroniser.together(lambda: bool(self.synchroniser.way.add_up(said) > 0), lambda: this_one)

    def _let_edit(self, tell: Callable[[], None]) -> None:
        """Over servers each worker goes on by itself, so nobody takes over what one has changed."""
        edited, parameters = FirstEdited(self.replicas), list(self.replicas[0].module.named_parameters())
        if self.is_lone:
            values = [p.detach().clone() for _, p in parameters] if self.synchroniser.way.servers_step else []
            tell()
            changed = [name for (name, p), value in zip(parameters, values, strict=False) if not torch.equal(p, value)]
            if changed:
                raise ConfigError(
                    f"a callback changed {changed[0]}, but the servers hold the parameters and step them; say "
                    "clip_norm=, and each worker does"
                )
            self.replicas = edited.follow(alone=False)
            self.synchroniser.before_forward()
            return
        told = False

        def tell_once() -> None:
            nonlocal told
            if not told:
                told = True
                tell()

        def edit() -> None:
            with self.synchroniser.edit():
                tell_once()
            self._follow_first_worker()

        self.synchroniser.together(edit, tell_once)
        self.replicas = edited.follow(alone=False)
        self.synchroniser.before_forward()  # what was frozen, say

    def _follow_first_worker(self) -> None:
        """In what is no value of a parameter: what asks for a gradient, and buffers."""
        if self._job.group is None:
            return
        parameters = list(self.replicas[0].module.parameters())
        asking = torch.tensor([p.requires_grad for p in parameters], dtype=torch.uint8)
        self._job.group.broadcast(asking)
        for parameter, asks in zip(parameters, asking.tolist(), strict=True):
            parameter.requires_grad_(bool(asks))
        self.synchroniser.way.share_buffers()

    @property
    def has_model(self) -> bool:
        return not self.synchroniser.way.servers_step

    @property
    def store(self) -> Store | None:
        return self.synchroniser.way.store

    @property
    def is_alike(self) -> bool:
        return not self.synchroniser.way.apart

    def sync_state(self) -> dict[str, Any]:
        return self.synchroniser.state()

    def load_sync_state(self, state: dict[str, Any]) -> None:
        self.synchroniser.load_state(state)

    def _begin(self, at: Position) -> None:
        if not self.synchroniser.way.is_collective:  # the position has counted the rounds before the checkpoint
            self._job.behind = max(0, self._job.behind - at.step)

    def _go_on_after_loss(self, at: Position, keeper: Keeper, error: RolledBack) -> Position:
        """The servers began again with a checkpoint: with all shards, so this worker does too; or with some, so it only
        takes what is there now."""
        assert self.store is not None
        rewound = self.store.rewind()
        self._lost = True
        self.made_by.forget()
        if rewound is not None:
            self.synchroniser.went_back()
            return keeper.go_back(self, rewound.folder)
        self.resumed_random = self.generators.states()
        return at

    def _catch_up(self) -> None:
        if self._lost:
            self.synchroniser.begin_again()
            spread_parameters(self.replicas, self.pool)
            self._lost = False

    def _shards(self, source: StepSource, at: Position) -> Iterator[list[DeviceBatch]]:
        """Batches are read ahead, whole or our part, and cut here: when a worker dies, for those who are left."""
        read = self._read(self._reading(source, at), at)
        batches = self._ahead(self._dealt(self._checked(batch, source)) for batch in read)
        self._before, begun = self._job.batches, at.in_epoch
        # Over servers nobody waits for others just to compare batches.
        check, balance = self.synchroniser.way.is_collective, self._agreed or False
        for given in shard(batches, whole=["batches"], check=check, balance=balance, job=self._job):
            # Batches that were done without this worker count, and one whose step was lost counts once.
            missed = begun + self._job.batches - self._before - 1 - at.in_epoch
            at.in_epoch, at.step = at.in_epoch + missed, at.step + missed
            assert self._job.share is not None
            step = as_step(given, source, at.in_epoch)
            shards = self._cut_part(step, self._job.share.of)
            yield shards if self._job.share.samples else [replace(part, weight=0.0) for part in shards]
        if at.in_epoch == begun:
            at.step += self._job.batches - self._before

    def _reading(self, source: StepSource, at: Position) -> Callable[[int], Iterator[StepBatch | PartBatch]]:
        """What reads an epoch, in the same order on all workers."""
        own, number = OwnPart(self._job, self._agreed), self._job.number
        done = 0 if self.resumed_random is None else at.in_epoch

        def read(epoch: int) -> Iterator[StepBatch | PartBatch]:
            loader = None if self._meets_within(source.accumulate) else loader_of_parts(source, epoch)
            if loader is None:
                return self._in_order(source.read(epoch), self._seed_of(epoch))
            seed = seed_of_worker(self._seed_of(epoch), number)
            reader = PartReader(loader, own.expect, seed, FirstWatched())
            parts = read_parts(loader, reader, source.accumulate, done, number)
            return self._in_order(parts, self._seed_of(epoch))

        return read

    def _in_order(self, batches: Iterable[T], seed: int) -> Iterator[T]:
        """The same on all workers: that of one process, where they can meet to agree on it."""
        return as_first_worker(batches, self._job.group) if self.agrees else alike(batches, seed)

    def _seed_of(self, epoch: int) -> int:
        return self._seed * 1_000_003 + epoch

    def _checked(self, batch: StepBatch | PartBatch, source: StepSource) -> StepBatch | PartBatch:
        """A part may have nothing to learn from, but not the whole batch."""
        if self.loss.terms.count is None:
            return batch
        if isinstance(batch, StepBatch):
            self.loss.refuse_nothing(self.loss.count(batch.targets))
        elif not self.loss.count(as_step(batch.data, source, 0).targets):
            whole = batch.take(0, len(batch.indices))
            self.loss.refuse_nothing(self.loss.count(as_step(whole, source, 0).targets))
        return batch

    def _meets_within(self, batches: int) -> bool:
        """Whether workers meet in each of a step's pieces, so that each needs its part of every piece."""
        return self.meets_in_pieces and batches > 1

    def _dealt(self, step: StepBatch | PartBatch) -> StepBatch | PartBatch:
        """Where workers meet in every piece, each gets its part of every piece: rows are put in that order."""
        if isinstance(step, PartBatch) or not self._meets_within(step.batches):
            return step
        _, rows = dealt(_pieces(length(step.inputs), step.batches), self._job.size)
        return StepBatch(take_rows(step.inputs, rows), take_rows(step.targets, rows), step.batches)

    def _cut_part(self, step: StepBatch, of: int) -> list[DeviceBatch]:
        """This worker's part of a step for its devices."""
        batch = step.inputs, step.targets
        if not self._meets_within(step.batches):
            return self._split(batch, of, step.batches)
        counts, _ = dealt(_pieces(of, step.batches), self._job.size)
        return split_pieces(batch, [replica.device for replica in self.replicas], counts[self._job.rank], of)

    def _missed(self) -> bool:
        """A worker that is started again comes to epochs that the others have done without it."""
        return self._job.batches > self._before

    def _step(self, shards: list[DeviceBatch], emit: Emit) -> BatchResult:
        told = emit if self.shares is None else self.shares.watch(shards, emit)
        if self._norms is not None:
            self._norms.begin(self._weigh_part(shards), counts=self._job.share is None or self._job.share.samples > 0)
        result = train_part(
            self.replicas, self.synchroniser, shards, self.loss, self.pool, self.strategy, self.randomness, told
        )
        # It computed with a sample that counts nothing, or its step was lost with a worker and comes again.
        if self._job.undone or (self._job.share is not None and self._job.share.samples == 0):
            return BatchResult(result.loss, None if result.correct is None else 0, 0, 0.0)
        return result

    def _weigh_part(self, shards: list[DeviceBatch]) -> float:
        """What this worker's gradient will count, of which batch normalisation exchanges sums."""
        if self.loss.terms.count is None:
            return self._job.weight
        own = sum(self.loss.count(part.targets) for part in shards if part.weight)
        total = self.synchroniser.way.add_up(torch.tensor([own], dtype=torch.float64))
        return own / float(total)

    def _end_epoch(self, at: Position, tests: BatchSource | None, emit: Emit) -> None:
        """Workers that step by themselves meet, whether there is test data or not: figures are of one model."""
        if isinstance(self._wishes.sync, Local):
            self.synchroniser.meet()
            spread_parameters(self.replicas, self.pool)
        super()._end_epoch(at, tests, emit)

    def _gather(self, seen: Evaluation) -> Evaluation:
        """Over servers nobody waits for others just to know: there each worker tells what it has seen itself."""
        if not self.synchroniser.way.is_collective:
            return seen
        return self.synchroniser.together(lambda: self._sum_epoch(seen), lambda: seen)

    def _sum_epoch(self, seen: Evaluation) -> Evaluation:
        if self._job.elastic is not None and self._job.group is not None:
            self._tell_newcomers(self._job.group)
        return self._sum(seen)

    def _tell_newcomers(self, group: Group) -> None:
        """What the run saw before they came: callbacks read the history."""
        known = group.all_gather(torch.tensor([len(self.history.loss)])).flatten().tolist()
        if len(set(known)) == 1:
            return
        teller = known.index(max(known))
        found = msgspec.json.decode(tell(group, teller, msgspec.json.encode(self.history)), type=History)
        for name in History.__struct_fields__:
            setattr(self.history, name, getattr(found, name))

    def _sum(self, seen: Evaluation) -> Evaluation:
        if self._job.size == 1:  # the last of its job
            return seen
        return add_evaluations(seen, self.synchroniser.way.add_up)

    def _evaluate(self, tests: BatchSource) -> Evaluation | None:
        """Each worker its part; over servers the first of the last step alone, and nobody waits for it."""
        if not self.synchroniser.way.is_collective:
            return super()._evaluate(tests) if self.synchroniser.way.led else None
        return self.synchroniser.together(
            lambda: self._sum(self._evaluate_alike(tests)), lambda: super(RunTogether, self)._evaluate(tests)
        )

    def _evaluate_alike(self, tests: BatchSource) -> Evaluation:
        self.synchroniser.look()
        return self._evaluate_own(tests)

    def _evaluate_own(self, tests: BatchSource) -> Evaluation:
        metrics, group = self.steering.metrics, self._job.group
        gather = partial(gather_rows, group) if group is not None and metrics else None
        alike_tests = replace(tests, read=lambda epoch: self._in_order(tests.read(epoch), self._seed))
        return evaluate_replicas(
            self.replicas, alike_tests, self.test_loss, self.pool, self._split_own, metrics, gather
        )

    def _split_own(self, batch: Batch) -> list[DeviceBatch]:
        """Our part of a batch of the test data; nothing if it is that small."""
        samples = length(batch[0])
        begin, end = even_share(samples, self._job.rank, self._job.size)
        return self._split(cut_rows(batch, begin, end), samples) if begin < end else []


def _pieces(samples: int, batches: int) -> list[int]:
    return even_pieces(samples, min(batches, samples))


def _until_spread(emit: Emit) -> Emit:
    """With several devices the parameters are updated once they are on all of them, which the step says itself."""

    def passed_on(event: Event) -> None:
        if not isinstance(event, ParametersUpdated):
            emit(event)

    return passed_on
