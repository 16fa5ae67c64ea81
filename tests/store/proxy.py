"""A proxy between real clients and a real server that does to whole frames what a bad network does to packets.

It drops answers, sends frames twice, holds them back and cuts connections, by a seed. The handshake and credit pass.
"""

import asyncio
import contextlib
import threading
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Any, Self

from gradtide.store.local.forkserver import Command
from gradtide.store.local.roles import Role
from gradtide.transport.frames import HEADER, Kind

__all__ = ["Proxy", "Weather", "behind_proxies"]

ALONE = (Kind.CREDIT, Kind.PING, Kind.PONG)

_HANDSHAKE = {"up": (16 + 124, 32), "down": (16 + 141,)}  # bytes that pass before the first frame, in turn


@dataclass(frozen=True, slots=True)
class Weather:
    """Probabilities, of each message that passes."""

    drop_answers: float = 0.0
    duplicate: float = 0.0
    delay: float = 0.0
    delay_s: float = 0.002
    cut: float = 0.0


class Proxy:
    """Listens at one UNIX path and talks to another, in a thread of its own."""

    def __init__(self, path: str, target: str, weather: Weather, seed: int) -> None:
        self._path, self._target, self._weather = path, target, weather
        self._random = Random(seed)
        self._ready = threading.Event()
        self._loop = asyncio.new_event_loop()
        self._stop = asyncio.Event()
        self._forgotten = 0
        self.counts = {"dropped": 0, "duplicated": 0, "delayed": 0, "cut": 0}
        self._thread = threading.Thread(target=self._run, name="gradtide-proxy", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        self._ready.wait()
        return self

    def __exit__(self, *error: object) -> None:
        self._loop.call_soon_threadsafe(self._stop.set)
        self._thread.join()

    def _run(self) -> None:
        with contextlib.closing(self._loop):
            self._loop.run_until_complete(self._serve())

    async def _serve(self) -> None:
        server = await asyncio.start_unix_server(self._connected, self._path)
        self._ready.set()
        await self._stop.wait()
        server.close()
        others = [task for task in asyncio.all_tasks() if task is not asyncio.current_task()]
        for task in others:
            task.cancel()
        await asyncio.gather(*others, return_exceptions=True)

    async def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            to_server = await asyncio.open_unix_connection(self._target)
        except OSError:
            writer.close()
            return
        pumps = [
            asyncio.create_task(self._pump("up", reader, to_server[1])),
            asyncio.create_task(self._pump("down", to_server[0], writer)),
        ]
        try:
            await asyncio.wait(pumps, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for pump in pumps:
                pump.cancel()
            await asyncio.gather(*pumps, return_exceptions=True)
            for end in (writer, to_server[1]):
                end.close()

    async def _pump(self, way: str, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """One direction, until an end closes or the connection is cut."""
        with contextlib.suppress(OSError, asyncio.IncompleteReadError):
            for size in _HANDSHAKE[way]:
                writer.write(await reader.readexactly(size))
            began = self._forgotten
            while True:
                message = await _message(reader)
                if began == self._forgotten and not await self._pass_on(way, message, writer.write, writer.drain):
                    return

    def forget_flows(self) -> None:
        """As a middlebox does: what is open now carries nothing any more, and nobody is told. New ones pass."""
        self._forgotten += 1

    async def _pass_on(
        self, way: str, message: bytes, write: Callable[[bytes], None], drain: Callable[[], Awaitable[None]]
    ) -> bool:
        weather, draw = self._weather, self._random.random
        if HEADER.unpack_from(message)[0] in ALONE:
            write(message)
            return True
        if draw() < weather.cut:
            self.counts["cut"] += 1
            return False
        if draw() < weather.delay:
            self.counts["delayed"] += 1
            await asyncio.sleep(weather.delay_s * draw())
        if way == "down" and draw() < weather.drop_answers:
            self.counts["dropped"] += 1
            return True
        write(message)
        if draw() < weather.duplicate:
            self.counts["duplicated"] += 1
            write(message)
        await drain()
        return True


async def _message(reader: asyncio.StreamReader) -> bytes:
    """All the frames of one message, or one frame of credit."""
    frames = []
    while True:
        head = await reader.readexactly(HEADER.size)
        kind, meta_bytes, body_bytes = HEADER.unpack(head)
        if kind == Kind.CREDIT:
            body_bytes = 0
        frames.append(head + await reader.readexactly(meta_bytes + body_bytes))
        if kind in (Kind.MESSAGE, Kind.BODY, *ALONE):
            return b"".join(frames)


def behind_proxies(forks: Any, folder: Path, weather: Weather, use: Callable[[str], None]) -> dict[str, int]:
    """A store of two servers in this weather, for as long as `use` is busy with it; what was done to its messages."""
    folder.chmod(0o700)
    coordinator = f"unix:{folder}/coordinator"
    roles = [Role(role="coordinator", name="coordinator", address=coordinator)]
    roles += [
        Role(
            role="server", name=f"server-{i}", address=f"unix:{folder}/server-{i}",
            advertise=f"unix:{folder}/proxy-{i}", coordinator=coordinator, expected=2,
        )
        for i in range(2)
    ]  # fmt: skip
    with (
        Proxy(f"{folder}/proxy-0", f"{folder}/server-0", weather, seed=1) as first,
        Proxy(f"{folder}/proxy-1", f"{folder}/server-1", weather, seed=2) as second,
    ):
        forks.ask(Command("start", str(folder), tuple(roles)))
        try:
            use(coordinator)
        finally:
            forks.ask(Command("stop", str(folder)))
    return {what: first.counts[what] + second.counts[what] for what in first.counts}
