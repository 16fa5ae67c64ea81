"""The server's process, and how a run starts one beside itself."""

import argparse
import contextlib
import os
import secrets
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from gradtide.dashboard.app import load_starlette, make_app
from gradtide.dashboard.feed import Feed
from gradtide.dashboard.guard import Token
from gradtide.dashboard.sources import RunSource
from gradtide.errors import CommunicationError, ConfigError, OutputError
from gradtide.observe.figures import load_prometheus
from gradtide.processes.ready import can_read
from gradtide.transport.keys import Credentials

__all__ = ["beside", "read_scrape_token", "serve"]

_READY_S = 60.0
_END_S = 5.0
_NICE = 10  # where all cores are busy the run comes first, and this process gets some tenth of what a worker gets


def serve(
    folder: Path | None,
    address: str = "",
    credentials: Credentials | None = None,
    *,
    port: int = 0,
    scrape_token: str = "",
    tell: Callable[[str], object] = print,
    watch: Callable[[Callable[[], None]], None] = lambda stop: None,
) -> None:
    """Serves until Ctrl-C or SIGTERM. `tell` hears the link; `watch` is given what ends it."""
    _, uvicorn = load_starlette()
    with _listen(port) as listener:
        os.nice(_NICE)
        port = listener.getsockname()[1]
        token = Token(port)
        feed = Feed(RunSource(folder) if folder is not None else None, address, credentials)
        config = uvicorn.Config(
            make_app(feed, token, scrape_token), log_level="warning", access_log=False, server_header=False,
            timeout_graceful_shutdown=3, lifespan="off", ws="none",
        )  # fmt: skip
        server = uvicorn.Server(config)
        feed.is_ending = lambda: bool(server.should_exit)

        def stop() -> None:
            feed.finish()
            server.should_exit = True

        watch(stop)
        feed.start()
        try:
            tell(f"http://127.0.0.1:{port}/?token={token.once}")
            with contextlib.suppress(KeyboardInterrupt):
                server.run(sockets=[listener])
        finally:
            feed.close()


def _listen(port: int) -> socket.socket:
    listener = socket.socket()
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind(("127.0.0.1", port))
        listener.listen()  # before anybody is told the link
    except OSError as error:
        listener.close()
        raise ConfigError(f"can't listen on port {port} ({error.strerror}); choose another --port") from None
    return listener


def read_scrape_token(path: Path) -> str:
    """What a Prometheus proves itself with: the file's one line, which is made if it is not there."""
    load_prometheus()
    try:
        if not path.exists():
            with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
                file.write(secrets.token_urlsafe(32) + "\n")
        text = path.read_text(encoding="utf-8").strip()
    except OSError as error:
        raise OutputError(f"can't read or make {path} ({error.strerror}); name another --metrics-token") from None
    if len(text) < 16:
        raise ConfigError(f"the token in {path} is shorter than 16 characters; remove the file, and one is made")
    return text


@contextmanager
def beside(folder: Path, address: str = "") -> Iterator[str]:
    """A dashboard in a process of its own, for as long as this one wants it; gives its link. It ends with us, however
    we end: it reads our end of a pipe."""
    load_starlette()
    command = [sys.executable, "-m", "gradtide.dashboard.serve", str(folder.absolute()), address]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, start_new_session=True)
    assert process.stdin is not None
    assert process.stdout is not None
    try:
        link = process.stdout.readline().decode().strip() if can_read([process.stdout], _READY_S) else ""
        if not link:
            raise CommunicationError(f"the dashboard did not start within {_READY_S:g} s; leave out --dashboard")
        yield link
    finally:
        process.stdin.close()
        try:
            process.wait(_END_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        process.stdout.close()


def _until_orphaned(stop: Callable[[], None]) -> None:
    def wait() -> None:
        sys.stdin.buffer.read()
        stop()

    threading.Thread(target=wait, name="gradtide parent", daemon=True).start()


def _main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("folder", type=Path)
    parser.add_argument("address", nargs="?", default="")
    asked = parser.parse_args()
    serve(asked.folder, asked.address, tell=lambda link: print(link, flush=True), watch=_until_orphaned)


if __name__ == "__main__":
    _main()
