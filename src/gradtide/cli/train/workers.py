"""`gradtide train --workers`: starts the workers and, while they load torch, checks what they are to do."""

import json
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from selectors import BaseSelector
from typing import TYPE_CHECKING, Any

import typer
from rich.console import Console, RenderableType
from rich.live import Live

from gradtide import errors
from gradtide.cli.train.keeping import before_resuming, plan_keeping
from gradtide.cli.watch.dashboard import dashboard_beside
from gradtide.cli.watch.trace import TRACED, RunWatchers
from gradtide.errors import ConfigError, OutputError
from gradtide.launch import Launcher, Spec, Target, check_spec
from gradtide.launch.output import Output

if TYPE_CHECKING:
    from gradtide.store.coordinator.loss_policy import Policy
    from gradtide.store.local.servers import LocalServers
    from gradtide.train.record import RunFolder
    from gradtide.train.settings import Settings

__all__ = ["Terminal", "choose_sync", "train_with_workers"]


def choose_sync(sync: str | None, servers: int) -> str:
    """What --sync says or means, or a mistake in it."""
    if servers < 0:
        raise ConfigError(f"--servers {servers} makes no sense; give 0 or more")
    if sync is None:
        return "bsp" if servers else "auto"
    name, _, delay = sync.partition(":")
    over_servers = sync in ("bsp", "async") or (name == "bounded" and delay.isdecimal())
    if servers and not over_servers:
        raise ConfigError(f"--sync {sync} is not for servers; with --servers say bsp, bounded:2 or async")
    if not servers and (over_servers or name == "bounded"):
        raise ConfigError(f"--sync {sync} goes through servers; add --servers 2")
    return sync


def train_with_workers(
    asked: dict[str, Any], workers: int, servers: int, keeping: dict[str, Any], as_json: bool, watched: RunWatchers
) -> None:
    """`asked` has the fields of train.settings.Settings. Nothing of torch is loaded here before a worker's is begun."""
    terminal = Terminal(show=not as_json)
    if terminal.shows:  # a table of all workers
        asked["fit"]["progress"] = False
    if keeping["every"] or keeping["resume"]:  # then which one it goes on with is known only when they are looked at
        from gradtide.train.settings import Settings

        settings = Settings(**asked)
        how = f"local steps, every {settings.every} after {settings.after}" if settings.every else settings.sync
        asked["checkpoints"] = plan_keeping(keeping, settings, Path(asked["folder"]), how)
    target = Target("gradtide.train.together.worker", (json.dumps(asked),), is_module=True)
    spec = Spec(target=target, workers=workers, preload="gradtide.parallel.preload")
    check_spec(spec)
    with ExitStack() as stack:
        launcher = stack.enter_context(Launcher(spec, partial(_Beside, terminal)))
        from gradtide.cli.train.report import Progress, conclude
        from gradtide.observe.run_facts import RunFacts, note_end
        from gradtide.train.settings import Settings

        settings = Settings(**asked)
        folder = _check(settings, workers, servers)
        variables = dict(TRACED) if watched.trace else {}
        if servers:
            events = folder.path if watched.trace else None
            store = stack.enter_context(_start_servers(servers, settings, keeping, events))
            variables["GRADTIDE_STORE"] = store.address
        title = f"{folder.path.name}: {settings.title(workers, servers)}"
        facts = RunFacts(title, workers, servers, variables.get("GRADTIDE_STORE", ""))
        progress = Progress(folder.path, facts, terminal, tells=settings.fit["progress"] is False)
        with dashboard_beside(watched.dashboard, folder.path, facts.store):
            with progress.following():
                code = launcher.run(variables)
            note_end(folder.path, code)
    if progress.began:
        conclude(folder, settings.title(workers, servers), progress.logs, as_json, whole=code == 0)
    ours = launcher.job.cause is not None and hasattr(errors, launcher.job.cause.kind)
    raise typer.Exit(2 if code and ours else code)


def _start_servers(servers: int, settings: "Settings", keeping: dict[str, Any], events: Path | None) -> "LocalServers":
    from gradtide.store.local.servers import local_servers

    found = settings.checkpoints
    if found is None:
        return local_servers(servers, events=events)
    policy: Policy = "rewind" if keeping["every"] else "empty"
    policies: dict[str | None, Policy] = {"stop": "empty", "continue": "continue"}
    policy = policies.get(keeping["after_loss"], policy)
    return local_servers(
        servers, restore=found["resume"] or None, checkpoints=found["path"], after_loss=policy, events=events
    )


def _check(settings: "Settings", workers: int, servers: int) -> "RunFolder":
    from gradtide.collective.executors.choose import choose, nominal_topology
    from gradtide.observe.event_log import LogReader, log_path
    from gradtide.schedule.strategies import STRATEGIES
    from gradtide.train.record import RunFolder, read_metrics
    from gradtide.train.together.merge import merge

    settings.check(workers)
    if not servers and settings.sync != "auto":
        if settings.sync not in STRATEGIES:
            ways = ", ".join(sorted(STRATEGIES))
            raise ConfigError(
                f"--sync {settings.sync}: no such way; say auto, {ways}, or with --servers bsp, bounded:2, async"
            )
        choose(settings.sync, nominal_topology([0] * workers), 1_000_000)
    path = Path(settings.folder)
    left = log_path(path, 0)
    if settings.checkpoints is not None and settings.checkpoints["resume"]:
        logs = {rank: LogReader(log_path(path, rank)).read() for rank in range(workers)}
        if not (path / "metrics.jsonl").exists() and any(logs.values()):  # it was killed before it could merge them
            merged = merge(settings.title(workers, servers), logs)
            (path / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in merged), encoding="utf-8")
        before = before_resuming(path, settings.checkpoints, read_metrics)
        for log in path.glob("*.jsonl"):
            if log.name != "metrics.jsonl":
                log.unlink()
        return RunFolder(path, before=before)
    folder = RunFolder(path)
    if left.exists():
        raise OutputError(f"{left} is there already; choose another --name or remove it")
    return folder


class Terminal:
    """Where a table is shown that changes, beside lines that stay."""

    def __init__(self, show: bool) -> None:
        self._console = Console(stderr=True)
        self.shows = show and self._console.is_terminal
        self._live: Live | None = None
        self._lock = threading.Lock()

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Somebody else writes: the table makes room, and comes back below."""
        with self._lock:
            if self._live is not None:
                self._live.stop()
                self._live = None
            yield

    def update(self, table: RenderableType) -> None:
        with self._lock:
            if self._live is None:
                self._live = Live(console=self._console, auto_refresh=False, transient=True)
                self._live.start()
            self._live.update(table, refresh=True)


class _Beside(Output):
    """What workers write, beside the table."""

    def __init__(self, terminal: Terminal, workers: int, selector: BaseSelector) -> None:
        super().__init__(workers, selector)
        self._terminal = terminal

    def _write(self, to: int, data: bytes) -> None:
        with self._terminal.paused():
            super()._write(to, data)
