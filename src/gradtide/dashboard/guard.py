"""Who may look, and what the browser may load: checked before anything else sees a request.

A page of somebody else's in the same browser can send requests here, too. It can't name this host (a name of its own
that resolves to 127.0.0.1 is refused), has no cookie of ours (SameSite=Strict), and nothing here changes anything.
"""

import hmac
import secrets
from collections.abc import Awaitable, Callable, MutableMapping
from http.cookies import CookieError, SimpleCookie
from typing import Any
from urllib.parse import parse_qs

__all__ = ["PageGuard", "Token"]

Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
App = Callable[[Message, Receive, Send], Awaitable[None]]

_HOSTS = ("localhost", "127.0.0.1")
_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; base-uri 'none'; "
    "form-action 'none'; frame-ancestors 'none'"
)
_HEADERS = [
    (b"content-security-policy", _POLICY.encode()),
    (b"x-content-type-options", b"nosniff"),
    (b"referrer-policy", b"no-referrer"),
    (b"cross-origin-resource-policy", b"same-origin"),
    (b"cross-origin-opener-policy", b"same-origin"),
    (b"cache-control", b"no-store"),
]
_NO_TOKEN = "the link's token is missing, wrong or used up; start gradtide dashboard again for another link"


class Token:
    """Good for one browser: whoever comes with it first gets the cookie."""

    def __init__(self, port: int) -> None:
        self.cookie = f"gradtide_{port}"  # cookies are not kept apart by port
        self.once = secrets.token_urlsafe(24)
        self._session = secrets.token_urlsafe(32)

    def spend(self, token: str) -> str | None:
        """The cookie for it, once."""
        if not self.once or not hmac.compare_digest(token.encode(), self.once.encode()):
            return None
        self.once = ""
        return f"{self.cookie}={self._session}; Path=/; HttpOnly; SameSite=Strict"

    def knows(self, cookies: str) -> bool:
        try:
            found = SimpleCookie(cookies).get(self.cookie)
        except CookieError:
            return False
        return found is not None and hmac.compare_digest(found.value.encode(), self._session.encode())


class PageGuard:
    """An ASGI application around another."""

    def __init__(self, app: App, token: Token, scrape_token: str = "") -> None:
        """`scrape_token` is a Prometheus's, which has no browser: it is good for /metrics and nothing else."""
        self._app, self._token, self._scrape = app, token, scrape_token

    async def __call__(self, scope: Message, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return  # no websockets
        headers = [(name.lower(), value.decode("latin-1")) for name, value in scope["headers"]]
        given = {name: [value for found, value in headers if found == name] for name, _ in headers}
        refused = _why_not(scope["method"], given.get(b"host", []))
        if refused is not None:
            await _answer(send, *refused)
            return
        cookie = None
        if not self._token.knows("; ".join(given.get(b"cookie", []))) and not self._scrapes(scope["path"], given):
            asked = parse_qs(scope["query_string"].decode("latin-1")).get("token", [""])
            cookie = self._token.spend(asked[0]) if scope["path"] == "/" else None
            if cookie is None:
                await _answer(send, 401, _NO_TOKEN)
                return
        await self._app(scope, receive, _with_headers(send, cookie))

    def _scrapes(self, path: str, given: dict[bytes, list[str]]) -> bool:
        kind, _, token = next(iter(given.get(b"authorization", [])), "").partition(" ")
        known = self._scrape and kind.lower() == "bearer" and path == "/metrics"
        return bool(known) and hmac.compare_digest(token.strip().encode(), self._scrape.encode())


def _why_not(method: str, hosts: list[str]) -> tuple[int, str] | None:
    name, _, port = hosts[0].partition(":") if len(hosts) == 1 else ("", "", "")
    if name.lower() not in _HOSTS or not (port.isdecimal() or hosts[0] == name):
        return 400, "reach the dashboard as localhost or 127.0.0.1; from another machine through ssh -L"
    if method != "GET":
        return 405, "the dashboard only shows: GET is all it knows"
    return None


def _with_headers(send: Send, cookie: str | None) -> Send:
    more = _HEADERS + ([(b"set-cookie", cookie.encode())] if cookie else [])

    async def sending(message: Message) -> None:
        if message["type"] == "http.response.start":
            kept = [(name, value) for name, value in message.get("headers", []) if name.lower() != b"cache-control"]
            message = {**message, "headers": [*kept, *more]}
        await send(message)

    return sending


async def _answer(send: Send, status: int, text: str) -> None:
    headers = [(b"content-type", b"text/plain; charset=utf-8"), *_HEADERS]
    headers += [(b"allow", b"GET")] if status == 405 else []
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": (text + "\n").encode()})
