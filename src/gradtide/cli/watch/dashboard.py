"""`gradtide dashboard RUN|ADDRESS`: a run and its store, live in a browser. It reads, and changes nothing."""

import importlib.util
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path
from typing import Annotated

import typer

from gradtide.cli.store_commands.serve import InsecureNetwork, SecretFile
from gradtide.errors import ConfigError

__all__ = ["check_dashboard", "dashboard", "dashboard_beside"]


def dashboard(
    what: Annotated[
        str,
        typer.Argument(metavar="RUN|ADDRESS", help="A run's folder, or a coordinator: unix:/path or tcp:host:port"),
    ],
    port: Annotated[int, typer.Option(help="Port of this machine; 0: any free one")] = 0,
    secret_file: SecretFile = None,
    insecure_network: InsecureNetwork = False,
    metrics_token: Annotated[
        Path | None,
        typer.Option(help="File with the token by which Prometheus may read /metrics; made if missing"),
    ] = None,
) -> None:
    """Show a run, or a store, live in a browser of this machine; prints a link for one browser."""
    from gradtide.dashboard.serve import read_scrape_token, serve
    from gradtide.transport.keys import read_credentials

    folder, address = _find(what)
    if not 0 <= port <= 65535:
        raise ConfigError(f"--port {port} is no port; give one from 1 to 65535, or 0 for any")
    token = read_scrape_token(metrics_token) if metrics_token is not None else ""
    credentials = read_credentials(secret_file, insecure_network=insecure_network)
    serve(folder, address, credentials, port=port, scrape_token=token, tell=_tell)


def _find(what: str) -> tuple[Path | None, str]:
    if what.startswith(("unix:", "tcp:", "tls:")):
        return None, what
    folder = Path(what)
    if not folder.is_dir():
        raise ConfigError(
            f"{what} is neither a run's folder nor an address; give runs/NAME, or unix:/path, tcp:host:port"
        )
    known = [*folder.glob("worker-*.jsonl"), folder / "metrics.jsonl", folder / "run.json"]
    if not any(path.exists() for path in known):
        raise ConfigError(f"{what} is no run's folder: it has neither worker-0.jsonl nor metrics.jsonl; give runs/NAME")
    return folder, ""


def _tell(link: str) -> None:
    typer.echo(f"dashboard: {link}")
    typer.echo("it is good for one browser of this machine; Ctrl-C ends it", err=True)


def check_dashboard(engine: str = "local") -> None:
    """Before anything is started: is there all that --dashboard needs?"""
    if engine != "local":
        raise ConfigError(
            "--dashboard reads files of this machine; on Ray look at the store: gradtide dashboard ADDRESS"
        )
    if any(importlib.util.find_spec(name) is None for name in ("starlette", "uvicorn")):
        raise ConfigError("the dashboard needs starlette and uvicorn: pip install 'gradtide[dashboard]'")


def dashboard_beside(wanted: bool, folder: Path, address: str = "") -> AbstractContextManager[None]:
    """With `--dashboard`: one for as long as a run takes, and its link, printed."""
    return _beside(folder, address) if wanted else nullcontext()


@contextmanager
def _beside(folder: Path, address: str) -> Iterator[None]:
    from gradtide.dashboard.serve import beside

    with beside(folder, address) as link:
        typer.echo(f"dashboard: {link}", err=True)
        yield
