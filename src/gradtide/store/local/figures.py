"""How a store is, as totals for Prometheus; and the coordinator's own /metrics."""

import contextlib
from collections import Counter
from collections.abc import Callable
from functools import partial

from gradtide.errors import CommunicationError, ConfigError
from gradtide.observe.figures import MetricFigures, load_prometheus, make_registry
from gradtide.store.local.status import Status, ask_status, complaints
from gradtide.transport.keys import Credentials

__all__ = ["add_status", "serve_metrics"]

_ASK_S = 1.0


def add_status(figures: MetricFigures, status: Status) -> None:
    """Adds what the coordinator and its servers say."""
    told, table = status.coordinator, status.coordinator.table
    figures.failures = {"server": 0, "worker": 0} | told.failures
    figures.members = {"server": 0, "worker": 0} | Counter(peer.role for peer in told.peers if peer.alive)
    figures.complaints = len(complaints(status))
    figures.short_shards = table.short_of_copies if table is not None else None
    for name, health in status.servers.items():
        if health is not None:
            figures.store_bytes[name] = health.size_bytes
            figures.lag |= {(name, replica): behind for replica, behind in health.lag.items()}


def serve_metrics(where: str, address: str, credentials: Credentials) -> Callable[[], None]:
    """Serves the /metrics of the coordinator at that address, from a thread of its own; returns what ends it. Each
    scrape asks as `gradtide status` does, so that the coordinator's own loop counts nothing for it."""
    host, _, port = where.rpartition(":")
    if not port.isdecimal() or int(port) > 65535:
        raise ConfigError(f"--metrics {where}: say a port, as in 9400, or an address and a port, as in 0.0.0.0:9400")
    registry = make_registry(partial(_read, address, credentials))
    try:
        server, thread = load_prometheus().start_http_server(int(port), host or "127.0.0.1", registry)
    except OSError as error:
        raise ConfigError(f"--metrics {where}: can't listen there ({error.strerror}); choose another port") from None

    def end() -> None:
        server.shutdown()
        server.server_close()
        thread.join()

    return end


def _read(address: str, credentials: Credentials) -> MetricFigures:
    figures = MetricFigures()
    with contextlib.suppress(CommunicationError):  # one of several that stands by says nothing
        add_status(figures, ask_status(address, credentials, _ASK_S))
    return figures
