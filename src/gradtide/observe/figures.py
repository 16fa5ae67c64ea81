"""Totals of a run and of a store, in base units, and the same as Prometheus reads them.

No label is a key or a step: there are as many series as ranks, links, servers and roles.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from importlib.metadata import version
from typing import Any

from gradtide.errors import ConfigError

__all__ = ["STALENESS", "MetricFigures", "load_prometheus", "make_registry", "render"]

STALENESS = (0, 1, 2, 4, 8, 16)  # the upper bounds of its histogram, in rounds


@dataclass(slots=True)
class MetricFigures:
    """What is known at this moment. Empty is what nobody has told."""

    phase_s: dict[tuple[int, str], float] = field(default_factory=dict)  # by rank and phase
    samples: dict[int, int] = field(default_factory=dict)  # by rank
    steps: dict[int, int] = field(default_factory=dict)
    link_bytes: dict[tuple[str, str], float] = field(default_factory=dict)  # by source and destination
    staleness: dict[int, int] = field(default_factory=dict)  # pulls, by how many rounds they missed
    lag: dict[tuple[str, str], int] = field(default_factory=dict)  # entries, by primary and replica
    failures: dict[str, int] = field(default_factory=dict)  # by role
    members: dict[str, int] = field(default_factory=dict)  # the living, by role
    store_bytes: dict[str, int] = field(default_factory=dict)  # by server
    short_shards: int | None = None  # with fewer copies than were asked for
    complaints: int | None = None
    predicted_s: dict[str, float] = field(default_factory=dict)  # by what is predicted
    measured_s: dict[str, float] = field(default_factory=dict)
    loss: float | None = None


def load_prometheus() -> Any:
    """prometheus_client, or one line that says how to get it."""
    try:
        import prometheus_client
    except ImportError:
        raise ConfigError("metrics need prometheus-client: pip install 'gradtide[metrics]'") from None
    return prometheus_client


def make_registry(read: Callable[[], MetricFigures]) -> Any:
    """A registry that asks `read` at each scrape, and keeps nothing itself."""

    class AtTheScrape:
        def describe(self) -> list[Any]:  # else registering would ask once
            return []

        def collect(self) -> Iterator[Any]:
            return _families(read())

    registry = load_prometheus().CollectorRegistry()
    registry.register(AtTheScrape())
    return registry


def render(figures: MetricFigures) -> bytes:
    """As text, in Prometheus's format."""
    text: bytes = load_prometheus().generate_latest(make_registry(lambda: figures))
    return text


def _families(figures: MetricFigures) -> Iterator[Any]:
    from prometheus_client.core import GaugeMetricFamily, InfoMetricFamily

    info = InfoMetricFamily("gradtide_build", "The version of gradtide")
    info.add_metric((), {"version": version("gradtide")})
    yield info
    yield from _counters(figures)
    yield _histogram(figures.staleness)
    for name, text, labels, values in (
        ("replica_lag_entries", "Entries that a replica has not confirmed", ("server", "replica"), figures.lag),
        ("members", "Members of the store that live", ("role",), figures.members),
        ("store_bytes", "Bytes of values on a server", ("server",), figures.store_bytes),
        ("predicted_seconds", "How long it takes, by the planner", ("what",), figures.predicted_s),
        ("measured_seconds", "How long the same has taken, on average", ("what",), figures.measured_s),
    ):
        yield _labelled(GaugeMetricFamily, name, text, labels, values)
    for name, text, value in (
        ("short_shards", "Shards with fewer copies than were asked for", figures.short_shards),
        ("complaints", "What gradtide status complains about", figures.complaints),
        ("loss", "The loss of the last step", figures.loss),
    ):
        if value is not None:
            yield GaugeMetricFamily(f"gradtide_{name}", text, value=float(value))


def _counters(figures: MetricFigures) -> Iterator[Any]:
    from prometheus_client.core import CounterMetricFamily

    for name, text, labels, values in (
        ("phase_seconds", "Seconds that a worker spent in a phase of its steps", ("rank", "phase"), figures.phase_s),
        ("samples", "Samples that a worker has trained on", ("rank",), figures.samples),
        ("steps", "Steps that a worker has taken", ("rank",), figures.steps),
        ("link_bytes", "Bytes that were sent to synchronise", ("src", "dst"), figures.link_bytes),
        ("failures", "Members of the store that were lost", ("role",), figures.failures),
    ):
        yield _labelled(CounterMetricFamily, name, text, labels, values)


def _labelled(kind: Any, name: str, text: str, labels: tuple[str, ...], values: dict[Any, Any]) -> Any:
    family = kind(f"gradtide_{name}", text, labels=labels)
    for key, value in sorted(values.items()):
        of = key if isinstance(key, tuple) else (key,)
        family.add_metric([str(part) for part in of], float(value))
    return family


def _histogram(staleness: dict[int, int]) -> Any:
    from prometheus_client.core import HistogramMetricFamily

    family = HistogramMetricFamily("gradtide_staleness_rounds", "Rounds that pulled values missed")
    buckets = [(str(most), float(sum(n for at, n in staleness.items() if at <= most))) for most in STALENESS]
    buckets.append(("+Inf", float(sum(staleness.values()))))
    family.add_metric((), buckets, sum_value=float(sum(at * n for at, n in staleness.items())))
    return family
