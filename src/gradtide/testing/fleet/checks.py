"""What must hold of a job on many nodes, and the first time that it does not."""

from dataclasses import dataclass, field
from fractions import Fraction

__all__ = ["Batch", "FleetViolation", "TrainedBatches", "Witness"]


class FleetViolation(Exception):
    """A promise that was broken."""


@dataclass(frozen=True, slots=True)
class Batch:
    """A step: who has added to it, and what all of that counts."""

    workers: tuple[int, ...]
    weight: Fraction


@dataclass(frozen=True, slots=True)
class TrainedBatches:
    """What a worker has: the batches that went into its parameters, in order."""

    batches: tuple[Batch, ...] = ()

    def then(self, batch: Batch) -> "TrainedBatches":
        return TrainedBatches((*self.batches, batch))


@dataclass(slots=True)
class Witness:
    """Is told of every step that a worker finishes."""

    newest: int = 0  # the generation of which a step was finished last
    steps: int = 0
    ended_with: TrainedBatches | None = None
    rosters: dict[int, tuple[int, ...]] = field(default_factory=dict)
    log: list[str] = field(default_factory=list)

    def note(self, now_s: float, text: str) -> None:
        self.log.append(f"{now_s:8.3f} {text}")

    def decreed(self, generation: int, ranks: tuple[int, ...]) -> None:
        if self.rosters.setdefault(generation, ranks) != ranks:
            raise FleetViolation(f"generation {generation} was decreed as {self.rosters[generation]} and as {ranks}")

    def stepped(self, now_s: float, generation: int, number: int) -> None:
        self.steps += 1
        if generation < self.newest:
            raise FleetViolation(
                f"worker {number} finished a step of generation {generation} at {now_s:.3f}, when generation "
                f"{self.newest} had stepped"
            )
        self.newest = generation

    def finished(self, number: int, generation: int, progress: TrainedBatches, steps: int) -> None:
        """A worker has come to the end of the script."""
        if len(progress.batches) != steps:
            raise FleetViolation(f"worker {number} ended with {len(progress.batches)} of {steps} batches")
        for place, batch in enumerate(progress.batches):
            if batch.weight != 1 or len(set(batch.workers)) != len(batch.workers):
                raise FleetViolation(f"batch {place} counts {batch.weight} at worker {number}, of {batch.workers}")
        if self.ended_with is None:
            self.ended_with = progress
        if progress != self.ended_with:
            raise FleetViolation(f"worker {number} ended with other parameters than the first that ended")
        if number not in self.rosters[generation] or generation != max(self.rosters):
            raise FleetViolation(f"worker {number} ended in generation {generation}, of {max(self.rosters)}")
