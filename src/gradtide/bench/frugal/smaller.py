"""What smaller messages are worth between two hosts: bytes, codecs' speed, and a step beside its ideal."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from statistics import median
from typing import Any

from gradtide.bench.frugal.codec_speed import CodecSpeed, codecs_of, formula_bytes
from gradtide.bench.frugal.contenders import NEVER, SmallerContender, contenders_of
from gradtide.bench.frugal.pair import run_pair, stores_on
from gradtide.errors import ConfigError
from gradtide.testing.hosts import two_hosts
from gradtide.train.models import check_model

__all__ = ["CODECS_BESIDE", "SmallerFound", "SmallerRow", "SmallerSettings", "bench_smaller"]

CODECS_BESIDE = "fp16,bf16,int8,onebit,topk:0.01,powersgd:4"
_PORT, _TORCH_PORT, _STORE_PORT = 29_760, 29_761, 29_770


@dataclass(frozen=True, slots=True)
class SmallerSettings:
    """What is measured."""

    model: str = "mlp"
    batch_size: int = 256  # over both workers
    rate: str = "100mbit"
    codecs: str = CODECS_BESIDE
    rounds: int = 3
    turn_s: float = 2.0  # that a contender's turn takes about: as many steps as that is, 1 to 10
    codec_values: int = 20_000_256  # 80 MB

    def check(self) -> None:
        check_model(self.model)
        codecs_of(self.codecs)
        bytes_per_s(self.rate)
        if self.batch_size < 2 or self.rounds < 1 or self.turn_s <= 0 or self.codec_values < 1:
            raise ConfigError("the batch needs 2 samples or more, and there must be 1 round or more, of some seconds")


@dataclass(frozen=True, slots=True)
class SmallerRow:
    """One contender: bytes are of one worker in a step, and go one way."""

    name: str
    formula_bytes: float
    payload_bytes: float | None  # where it is told
    wire_bytes: float  # on the interface, with all headers and confirmations
    step_s: float  # median of the rounds
    step_s_min: float
    step_s_max: float
    ideal_s: float  # computing, and then the formula's bytes at the wire's rate

    @property
    def of_ideal(self) -> float:
        return self.ideal_s / self.step_s


@dataclass(frozen=True, slots=True)
class SmallerFound:
    """What came of it."""

    rows: list[SmallerRow]
    speeds: list[CodecSpeed]
    seconds: dict[str, list[float]]  # of a step, in each round

    def ratio(self, name: str, other: str) -> float:
        """How many times as fast as another: the median of the rounds' ratios, each of turns beside each other."""
        return median(b / a for a, b in zip(self.seconds[name], self.seconds[other], strict=True))


def bytes_per_s(rate: str) -> float:
    """100mbit -> 12.5e6"""
    for unit, bits in (("mbit", 1e6), ("gbit", 1e9)):
        number = rate.removesuffix(unit)
        if number != rate and number.replace(".", "", 1).isdecimal() and float(number) > 0:
            return float(number) * bits / 8
    raise ConfigError(f"--rate {rate} makes no sense; write it as 100mbit or 1gbit")


def bench_smaller(settings: SmallerSettings, tell: Callable[[str], None]) -> SmallerFound:
    settings.check()
    codecs = codecs_of(settings.codecs)
    through = [which.name for which in contenders_of(codecs) if which.over_servers]
    tell("starting servers")
    with (
        two_hosts(settings.rate) as hosts,
        stores_on(hosts, [_STORE_PORT + 2 * number for number in range(len(through))]) as stores,
    ):
        asked: dict[str, Any] = asdict(settings) | {"codecs": codecs, "torch_port": _TORCH_PORT}
        asked["stores"] = dict(zip(through, stores, strict=True))  # each its own: a worker is in one store once
        found = run_pair(hosts, "gradtide.bench.frugal.smaller_worker", asked, _PORT, tell)
    rows = rows_of(contenders_of(codecs), found["steps"], found["shapes"], bytes_per_s(settings.rate))
    seconds = {name: of["seconds"] for name, of in found["steps"].items()}
    return SmallerFound(rows, [CodecSpeed(**speed) for speed in found["speeds"]], seconds)


def rows_of(
    contenders: Sequence[SmallerContender],
    steps: Mapping[str, Mapping[str, Any]],
    shapes: Sequence[Sequence[int]],
    wire_per_s: float,
) -> list[SmallerRow]:
    """A line each, beside what it should be."""
    compute_s, rows = median(steps[NEVER]["seconds"]), []
    for which in contenders:
        of = steps[which.name]
        formula = 0.0 if which.name == NEVER else formula_bytes(which.codec, shapes)
        took = of["seconds"]
        ideal_s = compute_s + formula / wire_per_s
        spread = median(took), min(took), max(took)
        rows.append(SmallerRow(which.name, formula, of["payload"], median(of["sent"]), *spread, ideal_s))
    return rows
