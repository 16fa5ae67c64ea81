"""How many bytes a step moves with a codec and without, how long that should take, and what "auto" makes of it."""

from collections.abc import Sequence

import torch

from gradtide.collective import Group
from gradtide.compress import AUTO, Codec, Compress, payload_bytes
from gradtide.compress.powersgd import PowerSGD
from gradtide.schedule.predict.smaller_messages import codec_seconds
from gradtide.sync.compressed.state import parts_of
from gradtide.sync.trained import Trained

__all__ = ["ONE_WORKER", "decide", "describe"]

ONE_WORKER = "compress='auto': none, since there is one worker, which sends nothing"
_CANDIDATES = ("int8", "bf16")  # that leave nothing out in the long run, whatever the optimizer
_WORTH = 0.8  # of the time without


def sent_bytes(codec: Codec, trained: Trained) -> int:
    """By one worker in a step."""
    return sum(payload_bytes(codec, part.form) for part in parts_of(range(len(trained.parameters)), trained))


def dense_bytes(trained: Trained) -> int:
    return sum(parameter.nbytes for parameter in trained.parameters)


def seconds(codec: Codec | None, trained: Trained, group: Group, senders: int) -> float | None:
    """That a step's synchronisation should take, without overlap; None where links were not measured. `senders`: so
    many payloads there are, one of each worker or one of each host."""
    model, dense = group.exchange_model, dense_bytes(trained)
    if model is None:
        return None
    if codec is None:
        return model.seconds("all_reduce", dense)
    work_s = codec_seconds(dense, senders, added_up=isinstance(codec, PowerSGD))
    if isinstance(codec, PowerSGD):
        return model.seconds("all_reduce", sent_bytes(codec, trained)) + work_s
    return model.seconds("all_gather", senders * sent_bytes(codec, trained)) + work_s


def describe(
    settings: Compress, trained: Trained, group: Group, each: str = "step", *, hosts: int | None = None
) -> str:
    """int8: 20 MB a step to each worker instead of 80; 1.8 s predicted instead of 6.6. `hosts`: so many send once."""
    codec, senders, who = settings.make(), hosts or group.size, "worker" if hosts is None else "host"
    others = senders - 1
    reduced = 2 * others / senders  # of what is added up each one gets its share from all, and all other shares
    share = reduced if isinstance(codec, PowerSGD) else others
    sent, dense = _megabytes([share * sent_bytes(codec, trained), reduced * dense_bytes(trained)])
    text = f"{settings}: {sent} MB a {each} to each {who} instead of {dense}"
    with_s, without_s = (seconds(one, trained, group, senders) for one in (codec, None))
    if with_s is not None and without_s is not None:
        text += f"; {with_s:.2g} s predicted instead of {without_s:.2g}"
    if group.on_one_host:
        text += "; on one host, where memory is faster than codecs, that is slower than without"
    if settings.after:
        text += f"; the first {settings.after} steps without"
    return text


def decide(
    settings: Compress, trained: Trained, group: Group, *, hosts: int | None = None
) -> tuple[Compress | None, str]:
    """What is used, the same on all workers, and why nothing if it is nothing."""
    if settings.codec != AUTO:
        return settings, ""
    if group.on_one_host:
        return None, "compress='auto': none, since all workers are on one host, where memory is faster than codecs"
    if any(p.dtype not in (torch.float32, torch.float64) or p.device.type != "cpu" for p in trained.parameters):
        return None, "compress='auto': none, since parameters are small already, or on an accelerator"
    group.explain(probe=True)  # measures the links, unless that was done before
    senders = hosts or group.size
    without_s = seconds(None, trained, group, senders)
    assert without_s is not None
    found = {name: seconds(Compress(name).make(), trained, group, senders) or 0.0 for name in _CANDIDATES}
    best = min(_CANDIDATES, key=lambda name: found[name])
    pays = torch.tensor([found[best] < _WORTH * without_s, _CANDIDATES.index(best)], dtype=torch.int64)
    group.broadcast(pays)  # rank 0's word, should clocks differ
    best = _CANDIDATES[int(pays[1])]
    if int(pays[0]):
        return Compress(best, after=settings.after), ""
    return None, (
        f"compress='auto': none, since {best} would take {found[best]:.2g} s, and whole gradients take {without_s:.2g}"
    )


def _megabytes(sizes: Sequence[float]) -> list[str]:
    return [f"{size / 1e6:.3g}" for size in sizes]
