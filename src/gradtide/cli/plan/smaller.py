"""What `gradtide plan --compress` says: bytes and seconds of a synchronisation with a codec and without."""

from argparse import Namespace
from dataclasses import asdict
from math import isqrt
from typing import Any

import numpy as np

from gradtide.cli.table import BOLD, styled, table_lines
from gradtide.compress import AUTO, Compress, Form, as_compress, payload_bytes
from gradtide.errors import ConfigError
from gradtide.schedule.explain import short_seconds, short_size
from gradtide.schedule.plan import Plan
from gradtide.schedule.plan import plan as find_plan
from gradtide.schedule.predict.smaller_messages import CompressForecast, codec_seconds
from gradtide.topology.model import Topology

__all__ = ["as_data", "check_compress", "compress_text", "forecast_compression"]


def check_compress(asked: Namespace) -> Compress:
    """The codec, before anything is planned."""
    found = as_compress(asked.compress)
    if found is None or found.codec == AUTO:
        raise ConfigError("plan --compress: name a codec, as int8 or topk:0.01, to see what it saves")
    if asked.sizes or not asked.topology:
        raise ConfigError("--compress needs a topology and one --size")
    if asked.collective not in (None, "all_reduce"):
        raise ConfigError(f"--compress is of all_reduce, not of {asked.collective}")
    return found


def forecast_compression(settings: Compress, found: Plan, topology: Topology) -> CompressForecast:
    """Gradients are float32, and to powersgd one square matrix. What can't be added up goes from all to all."""
    codec, size, workers = settings.make(), found.request.size_bytes, len(found.request.devices)
    side, added_up = isqrt(size // 4), settings.codec == "powersgd"
    form = Form(side * side, np.dtype(np.float32), side) if added_up else Form(max(1, size // 4), np.dtype(np.float32))
    sent = payload_bytes(codec, form)
    devices = list(found.request.devices)
    if added_up:
        best = find_plan(topology, sent, "all_reduce", devices).best
    else:
        best = find_plan(topology, sent * workers, "all_gather", devices).best
    codec_s = codec_seconds(size, workers, added_up=added_up)
    whole = found.best
    return CompressForecast(str(settings), whole.seconds, whole.wire_bytes, best.seconds, codec_s, best.wire_bytes)


def as_data(forecast: CompressForecast) -> dict[str, Any]:
    """What --json adds."""
    return {"compress": asdict(forecast) | {"small_s": forecast.small_s, "is_worth_it": forecast.is_worth_it}}


def compress_text(forecast: CompressForecast) -> str:
    rows = [
        ("whole", forecast.whole_s, 0.0, forecast.whole_bytes),
        (forecast.codec, forecast.small_s, forecast.codec_s, forecast.small_bytes),
    ]
    cells = [
        (name, short_seconds(s), short_seconds(codec_s) if codec_s else "-", short_size(float(f"{size:.3g}")))
        for name, s, codec_s, size in rows
    ]
    head, *lines = table_lines(("gradients", "a synchronisation", "of it codecs", "on the wire"), cells)
    return "\n".join([styled(BOLD, head), *lines, "", f"{forecast.explain()}."])
