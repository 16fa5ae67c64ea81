"""Sizes, rates and times as people write them: "160MB", "16 GB/s", "100 Gbit/s", "3 us"."""

import difflib
import re
from collections.abc import Mapping
from decimal import Decimal

from gradtide.errors import TopologyError
from gradtide.topology.wording import shown

__all__ = [
    "format_bytes_per_s",
    "format_seconds",
    "format_size",
    "parse_bytes_per_s",
    "parse_seconds",
    "parse_size_bytes",
    "parse_size_range",
]

# Decimal arithmetic keeps what was written: 1.5 us is the float nearest to 0.0000015, and survives a round trip.
DECIMAL = {"": 0, "k": 3, "M": 6, "G": 9, "T": 12}
BINARY = {"Ki": 1, "Mi": 2, "Gi": 3, "Ti": 4}

BYTES = {f"{'K' if p == 'k' else p}B": Decimal(10) ** e for p, e in DECIMAL.items()}
BYTES |= {f"{p}B": Decimal(1024) ** e for p, e in BINARY.items()}
RATES = {f"{unit}/s": factor for unit, factor in BYTES.items()}
RATES |= {f"{p}bit/s": Decimal(10) ** e / 8 for p, e in DECIMAL.items()}
TIMES = {"s": Decimal(1), "ms": Decimal("1e-3"), "us": Decimal("1e-6"), "ns": Decimal("1e-9")}

# Other spellings that mean one thing only. Gb/s is not among them: half the world means GB/s by it.
BYTES_ALIKE = {"kB": "KB"}
RATES_ALIKE = {"kB/s": "KB/s", "Kbit/s": "kbit/s"} | {f"{p}bps": f"{p}bit/s" for p in DECIMAL if p}
TIMES_ALIKE = {"µs": "us", "μs": "us"}

MOST = Decimal("1e24")
QUANTITY = re.compile(r"\s*([+-]?(?:\d{1,30}(?:\.\d{0,30})?|\.\d{1,30})(?:[eE][+-]?\d{1,3})?)\s*(\S*)\s*", re.ASCII)


def parse_size_bytes(text: str) -> int:
    """Bytes of "4KB" (4000), "4KiB" (4096), "160 MB", "17" or "17 B"."""
    size = _parse(text, "a size", BYTES, BYTES_ALIKE, bare="B", example="160MB")
    if size != int(size):
        raise TopologyError(f"{shown(text)} is {size:f} bytes; a size must be a whole number of bytes")
    return int(size)


def parse_size_range(text: str) -> tuple[int, int]:
    """Both ends of "4KB..1GB"."""
    first, dots, last = text.partition("..")
    if not dots:
        raise TopologyError(f"{shown(text)} is not a range of sizes; write for example 4KB..1GB")
    low, high = parse_size_bytes(first), parse_size_bytes(last)
    if low > high:
        raise TopologyError(f"the range of sizes {shown(text)} ends before it starts; write {last}..{first}")
    return low, high


def parse_bytes_per_s(text: str) -> float:
    """Bytes per second of "16 GB/s" or "100 Gbit/s"."""
    return float(_parse(text, "a rate", RATES, RATES_ALIKE, bare=None, example="16 GB/s"))


def parse_seconds(text: str) -> float:
    """Seconds of "3 us"; zero is allowed."""
    return float(_parse(text, "a time", TIMES, TIMES_ALIKE, bare=None, example="3 us"))


def _parse(
    text: str, what: str, units: Mapping[str, Decimal], alike: Mapping[str, str], bare: str | None, example: str
) -> Decimal:
    match = QUANTITY.fullmatch(text)
    if not match:
        raise TopologyError(f"{shown(text)} is not {what}; write a number and a unit, for example {example!r}")
    number, unit = match.groups()
    unit = alike.get(unit, unit) or bare or ""
    if unit not in units:
        raise TopologyError(_unknown_unit(text, unit, what, units, example))
    value = Decimal(number) * units[unit]
    if value < 0:
        raise TopologyError(f"{shown(text)} is negative; {what} must not be")
    if value > MOST:
        raise TopologyError(f"{shown(text)} is larger than anything; {what} is at most 1e24")
    return value


def _unknown_unit(text: str, unit: str, what: str, units: Mapping[str, Decimal], example: str) -> str:
    if not unit:
        return f"{shown(text)} has no unit; write {what} with one, for example {example!r}"
    if re.fullmatch(r"[kKMGT]b/s", unit):
        return f"{shown(text)}: {unit} is ambiguous; write {unit[0]}B/s for bytes or {unit[0]}bit/s for bits"
    lower = {known.lower(): known for known in reversed(list(units))}
    near = difflib.get_close_matches(unit.lower()[:20], lower, n=1, cutoff=0.4)
    hint = f"did you mean {lower[near[0]]}?" if near else f"known are {', '.join(units)}"
    return f"{shown(text)}: no unit of {what.split()[-1]} is called {shown(unit)}; {hint}"


def format_size(size_bytes: float) -> str:
    """Short, for people: 160 MB, 4 KB, 1.5 GB."""
    return _format(size_bytes, BYTES)


def format_bytes_per_s(bytes_per_s: float) -> str:
    """Exact: parse_bytes_per_s gives back the very same float."""
    return _format(bytes_per_s, {u: f for u, f in RATES.items() if u.endswith("B/s")})


def format_seconds(seconds: float) -> str:
    """Exact: parse_seconds gives back the very same float."""
    return _format(seconds, TIMES)


def _format(value: float, units: Mapping[str, Decimal]) -> str:
    exact = Decimal(repr(float(value)))
    decimal = {u: f for u, f in units.items() if "i" not in u}  # powers of ten keep the digits
    fitting = [(f, u) for u, f in decimal.items() if f <= exact]
    factor, unit = max(fitting) if fitting else min((f, u) for u, f in decimal.items())
    if not exact:
        factor, unit = Decimal(1), next(u for u, f in decimal.items() if f == 1)
    scaled = exact / factor
    number = f"{scaled:f}" if scaled > Decimal("1e-9") or not scaled else str(scaled)
    return f"{number.rstrip('0').rstrip('.') if '.' in number and 'E' not in number else number} {unit}"
