"""All-reduce's way, with buckets that are compressed: they leave while backward goes on, as whole ones do."""

from collections.abc import Mapping, Sequence
from functools import partial

import torch

from gradtide.compress import Compress
from gradtide.compress.compiled import Array
from gradtide.compress.powersgd import PowerSGD
from gradtide.events import Emit, GradientsSynchronised
from gradtide.sync.alone import Alone
from gradtide.sync.buckets import Bucket
from gradtide.sync.compressed.factored import FactoredBucket
from gradtide.sync.compressed.gathered import GatheredBucket
from gradtide.sync.compressed.state import Compression, ResidualRates, Round, hand_over, parts_of
from gradtide.sync.job import Job
from gradtide.sync.reduce import Reduce
from gradtide.sync.trained import Trained

__all__ = ["CompressedReduce", "LeftToOne"]


class CompressedReduce(Reduce):
    """The way of ranks that hold a copy of the parameters each, and send each other compressed gradients."""

    def __init__(
        self,
        trained: Trained,
        job: Job,
        settings: Compress,
        compression: Compression,
        reason: str,
        emit: Emit,
        *,
        overlap: bool = True,
    ) -> None:
        group = job.group
        assert group is not None
        super().__init__(trained, job, group, None, reason, emit, overlap=overlap)
        self._lane, self._after, self._state, self._rates = group, settings.after, compression, ResidualRates(trained)
        compression.settle(job)
        known = torch.tensor([compression.steps, compression.rounds])
        compression.steps, compression.rounds = group.broadcast(known).tolist()
        codec, kept = settings.make(), compression.residuals
        make = FactoredBucket if isinstance(codec, PowerSGD) else GatheredBucket
        self._exchanges = [
            make(group, codec, flat, parts_of(bucket.indices, trained), kept)  # type: ignore[arg-type]
            for bucket, flat in zip(self._buckets.all, self._memory.flat, strict=True)
        ]

    @property
    def _is_whole(self) -> bool:
        """Whether this step is one of the first, whose gradients are not compressed."""
        return self._state.steps < self._after

    def ready(self, index: int, weight: float) -> None:
        self._state.residuals.begin()
        super().ready(index, weight)

    def _leave(self, bucket: Bucket) -> None:
        if self._is_whole:
            super()._leave(bucket)
            return
        gradients = {index: self._trained.parameters[index].grad for index in bucket.indices}
        given = frozenset(index for index, g in gradients.items() if g is not None and not g.is_sparse)
        now = Round(self._state.rounds, given, self._rates.now(bucket.indices))
        work = partial(self._exchanges[bucket.number].exchange, now)
        self._handles.append(self._lane.submit("an exchange of compressed gradients", work))

    def synchronise(self, weights: Sequence[float], late: bool) -> None:
        self._state.residuals.begin()
        super().synchronise(weights, late)
        self._state.residuals.end()
        self._state.rounds += 1

    def _emit_bytes(self) -> None:
        if self._is_whole:
            super()._emit_bytes()
        else:
            self._emit(GradientsSynchronised(sum(exchange.sent_bytes for exchange in self._exchanges)))

    def stepped(self) -> None:
        self._state.steps += 1
        self._state.residuals.stepped()

    def factors(self) -> dict[str, Array]:
        return {name: factor for exchange in self._exchanges for name, factor in exchange.factors().items()}

    def load_factors(self, known: Mapping[str, Array]) -> None:
        for exchange in self._exchanges:
            exchange.load_factors(known)

    # --- who goes ---

    def hand_over(self, number: int, going: Sequence[int]) -> None:
        hand_over(self._state.residuals, self._trained, self._lane, number, going)


class LeftToOne(Alone):
    """One worker, which has what was left out when there were more: it counts with the next gradient."""

    def __init__(self, trained: Trained, job: Job, compression: Compression, emit: Emit) -> None:
        super().__init__(emit)
        self.reason += ", nor to compress"
        self._trained, self._state, self._rates = trained, compression, ResidualRates(trained)
        compression.settle(job)

    def synchronise(self, weights: Sequence[float], late: bool) -> None:
        residuals = self._state.residuals
        residuals.begin()
        rates = self._rates.now(range(len(self._trained.parameters)))
        for index, (name, parameter) in enumerate(zip(self._trained.names, self._trained.parameters, strict=True)):
            gradient = parameter.grad
            if gradient is None or gradient.is_sparse or rates[index] == 0.0 or name not in residuals:
                continue
            whole = torch.zeros(parameter.numel(), dtype=_torch_dtype(parameter)).numpy()
            left = residuals.correct(name, whole, rates[index])
            with torch.no_grad():
                gradient.add_(torch.from_numpy(left).view_as(gradient))
            left[:] = 0
        residuals.end()
        super().synchronise(weights, late)

    def factors(self) -> dict[str, Array]:
        """One worker has no thin matrices."""
        return {}

    def load_factors(self, known: Mapping[str, Array]) -> None:
        """They are for several."""

    def stepped(self) -> None:
        self._state.steps += 1
        self._state.residuals.stepped()


def _torch_dtype(parameter: torch.nn.Parameter) -> torch.dtype:
    return torch.float64 if parameter.dtype == torch.float64 else torch.float32
