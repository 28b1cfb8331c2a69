"""Opening a session: addresses, keys, dialects.

Rule kept here: an address may be given as people write it (a host with a port, http://, ws://, with or without the
path); what is missing is filled in, what is wrong is said.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from typing import Final
from urllib.parse import parse_qsl, urlencode, urlsplit, urlunsplit

import msgspec

from duologue.client.fault import ConnectError, SessionEndedError
from duologue.client.functions import Functions
from duologue.client.link import Link, ReconnectPolicy, Tap
from duologue.client.session import CLOSE_TIMEOUT_S, ClientSession
from duologue.client.socket import Opener, open_websocket
from duologue.wire.decoder import Dialect
from duologue.wire.objects import Session
from duologue.wire.server_events import ServerEvent

PATH: Final = "/v1/realtime"
_SCHEMES: Final = {"ws": "ws", "wss": "wss", "http": "ws", "https": "wss", "": "ws"}


def realtime_url(url: str, *, dialect: Dialect, model: str | None = None, resume: bool = False) -> str:
    """The WebSocket address for `url`. Raises ConnectError if it cannot be one."""
    written = url if "://" in url else f"//{url}"
    parts = urlsplit(written)
    scheme = _SCHEMES.get(parts.scheme)
    if scheme is None or not parts.netloc:
        raise ConnectError(f"{url!r} is not a usable address: write ws://HOST:PORT or wss://HOST")
    path = parts.path if parts.path not in ("", "/") else PATH
    query = dict(parse_qsl(parts.query))
    if model is not None:
        query["model"] = model
    if dialect == "duplex":
        query["duplex"] = "1"
        query["autostart"] = "0"  # the first message opens the session, with the settings in it
        if resume:
            query["resume"] = "1"
    return urlunsplit((scheme, parts.netloc, path, urlencode(query), ""))


@asynccontextmanager
async def connect(
    url: str,
    *,
    api_key: str | None = None,
    dialect: Dialect = "duplex",
    model: str | None = None,
    session: Session | None = None,
    headers: Mapping[str, str] | None = None,
    reconnect: ReconnectPolicy | None = None,
    heartbeat_period_s: float = 30.0,
    close_timeout_s: float = CLOSE_TIMEOUT_S,
    functions: Functions | None = None,
    tap: Tap | None = None,
    opener: Opener = open_websocket,
    jitter: Callable[[], float] | None = None,
) -> AsyncIterator[ClientSession]:
    """A session for the length of an ``async with`` block; raises ConnectError if it cannot be opened.

    `url`: ``ws://host:port`` (or http, or ``host:port``); the path is filled in. `session`: settings to start with.
    `dialect`: ``duplex`` (playback, resume, heartbeats) or ``ga`` (OpenAI's). `reconnect`: ``None`` is the default
    policy; resuming needs the duplex dialect. `close_timeout_s`: how long leaving may wait for the server, once for the
    close to be taken and once for the session's terminal. `functions`: what the model may call; they
    are offered with the first settings and run when it calls them, and it goes on with their results.
    `tap` sees every frame. `opener` and `jitter` are for tests.
    """
    authorised = dict(headers or {})
    if api_key:
        authorised["Authorization"] = f"Bearer {api_key}"
    link = Link(
        url=realtime_url(url, dialect=dialect, model=model),
        resume_url=realtime_url(url, dialect=dialect, model=model, resume=True),
        headers=authorised,
        dialect=dialect,
        opener=opener,
        on_event=_nowhere,
        on_end=_unheard,
        tap=tap,
        policy=reconnect or ReconnectPolicy(),
        heartbeat_period_s=heartbeat_period_s,
    )
    if jitter is not None:
        link.jitter = jitter
    if functions is not None:
        session = msgspec.structs.replace(session or Session(), tools=functions.tools())
    opened = ClientSession(link, close_timeout_s=close_timeout_s, functions=functions)
    try:
        await opened.wait_open(session)
        yield opened
    finally:
        await opened.close()


def _nowhere(_: ServerEvent) -> None:
    """Replaced by the session before anything can arrive."""


def _unheard(_: SessionEndedError) -> None:
    """Replaced by the session before anything can end."""
