"""The pages and the stream, as an ASGI application. Everything is read-only."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

from gradtide.dashboard.feed import MOST_READERS, Feed
from gradtide.dashboard.guard import App, PageGuard, Token
from gradtide.errors import ConfigError
from gradtide.observe.figures import load_prometheus, render

__all__ = ["load_starlette", "make_app"]

STATIC = Path(__file__).with_name("static")
_KINDS = {".html": "text/html", ".js": "text/javascript", ".css": "text/css", ".svg": "image/svg+xml"}
_STILL_S = 10.0  # after which a stream says that it is there
_LOOK_S = 0.5  # whether the server is to end


def load_starlette() -> Any:
    """starlette and uvicorn, or one line that says how to get them."""
    try:
        import starlette
        import uvicorn
    except ImportError:
        raise ConfigError("the dashboard needs starlette and uvicorn: pip install 'gradtide[dashboard]'") from None
    return starlette, uvicorn


def make_app(feed: Feed, token: Token, scrape_token: str = "") -> App:
    load_starlette()
    from starlette.applications import Starlette
    from starlette.requests import Request
    from starlette.responses import PlainTextResponse, Response, StreamingResponse
    from starlette.routing import Route

    files = {path.name: path for path in STATIC.iterdir()}

    async def page(request: Request) -> Response:
        name = request.path_params.get("name", "index.html")
        if name not in files:
            return PlainTextResponse("there is no such page\n", 404)
        path = files[name]
        kind = _KINDS.get(path.suffix, "text/plain")
        return Response(path.read_bytes(), media_type=kind)

    async def stream(request: Request) -> Response:
        if feed.readers >= MOST_READERS:
            return PlainTextResponse(f"{MOST_READERS} readers are enough; close a page\n", 503)
        return StreamingResponse(_news(feed), media_type="text/event-stream", headers={"x-accel-buffering": "no"})

    async def picture(request: Request) -> Response:
        svg = feed.picture.svg
        return Response(svg, media_type="image/svg+xml") if svg else PlainTextResponse("nothing was sent yet\n", 404)

    async def metrics(request: Request) -> Response:
        try:
            kind = load_prometheus().CONTENT_TYPE_LATEST
        except ConfigError as error:
            return PlainTextResponse(f"{error}\n", 501)
        return Response(await asyncio.to_thread(lambda: render(feed.figures())), headers={"content-type": kind})

    routes = [
        Route("/", page, methods=["GET"]),
        Route("/static/{name}", page, methods=["GET"]),
        Route("/stream", stream, methods=["GET"]),
        Route("/topology.svg", picture, methods=["GET"]),
        Route("/metrics", metrics, methods=["GET"]),
    ]
    return PageGuard(Starlette(routes=routes), token, scrape_token)


async def _news(feed: Feed) -> AsyncIterator[str]:
    with feed.reading() as reader:
        yield "retry: 1000\n\n"
        quiet_s = 0.0
        while True:
            if feed.is_ending():
                await asyncio.sleep(0)  # after which all that was told before is in the queue
                if reader.queue.empty():
                    return
            try:
                message, quiet_s = await asyncio.wait_for(reader.queue.get(), _LOOK_S), 0.0
            except TimeoutError:
                quiet_s += _LOOK_S
                if quiet_s < _STILL_S:
                    continue
                message, quiet_s = ": still here\n\n", 0.0
            if message.startswith("event: again"):
                message = feed.snapshot()
            yield message
