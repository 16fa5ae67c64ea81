"""What has happened, in words: events that are no part of every step."""

from gradtide.events import (
    CheckpointFailed,
    CheckpointTaken,
    CompressionDecided,
    Degraded,
    EpochDone,
    Event,
    FailedOver,
    LinksPlanned,
    MemberCame,
    MemberLost,
    MembersDecreed,
    ReplicasShort,
    ShardsLost,
    SharesChanged,
    SplitDecided,
)

__all__ = ["describe"]


def describe(event: Event) -> tuple[str, str] | None:
    """An event as a line of a timeline: good, bad or plain, and its words. None: it is not one of those."""
    return _of_a_run(event) or _of_a_store(event)


def _of_a_run(event: Event) -> tuple[str, str] | None:
    match event:
        case CheckpointTaken():
            return "good", f"checkpoint at step {event.step}, {event.size_bytes / 1e6:,.1f} MB in {event.seconds:.1f} s"
        case CheckpointFailed():
            return "bad", f"the checkpoint at step {event.step} failed: {event.text}"
        case SharesChanged():
            return "plain", f"{event.who}s take {', '.join(map(str, event.samples))} samples of a batch: {event.text}"
        case CompressionDecided() | SplitDecided():
            return "plain", event.text
        case Degraded(shards=0):
            return "good", "all shards have a replica in sync again"
        case Degraded():
            return "bad", f"{event.shards} shards have no replica in sync"
        case EpochDone() if event.test_accuracy is not None:
            return "plain", f"epoch {event.epoch} done, test accuracy {event.test_accuracy:.3f}"
        case LinksPlanned():
            return "plain", f"gradients go by {event.way}"
    return None


def _of_a_store(event: Event) -> tuple[str, str] | None:
    match event:
        case MemberCame():
            return "good", f"{_member(event)} has come"
        case MemberLost():
            return "bad", f"{_member(event)} was lost"
        case MembersDecreed():
            return "plain", f"in the rounds: {', '.join(f'worker {w}' for w in event.workers) or 'nobody'}"
        case FailedOver():
            return "good", f"replicas took over {event.shards} shards of {event.server}"
        case ReplicasShort(shards=0):
            return "good", "all shards have all their copies again"
        case ReplicasShort():
            return "bad", f"{event.shards} shards have fewer copies than were asked for"
        case ShardsLost():
            return "bad", f"{event.shards} shards had to begin anew: more servers died than there were replicas"
    return None


def _member(event: MemberCame | MemberLost) -> str:
    """Most names begin with what they are the name of."""
    return event.name if event.name.startswith(event.role) else f"{event.role} {event.name}"
