"""The one file that knows the WebSocket library: opening, sending and receiving text frames.

Rules kept here: a socket that is gone is always :class:`SocketClosed`, whatever the library calls it; opening fails
with :class:`ConnectError` that says what to do; closing takes a second at most, then the connection is dropped.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import Final, Literal, Protocol
from urllib.parse import urlsplit

from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import ConnectionClosed, InvalidHandshake, InvalidStatus, InvalidURI

from duologue.client.fault import ConnectError

CLOSE_TIMEOUT_S: Final = 1.0
OPEN_TIMEOUT_S: Final = 10.0
MAX_FRAME_BYTES: Final = 64 * 1024 * 1024
_PING_PERIOD_S: Final = 20.0
_LOOPBACK: Final = frozenset({"localhost", "127.0.0.1", "::1"})


class SocketClosed(Exception):
    """The connection is gone. ``code`` is the close code, 1006 if there was no close frame."""

    def __init__(self, code: int, reason: str) -> None:
        super().__init__(f"closed with code {code}" + (f" ({reason})" if reason else ""))
        self.code = code
        self.reason = reason


class Socket(Protocol):
    """An open connection. Frames may be sent from several tasks; one task receives."""

    async def send(self, frame: bytes) -> None:
        """Send one text frame (UTF-8). Raises SocketClosed."""
        ...

    async def receive(self) -> bytes:
        """The next frame as bytes. Raises SocketClosed."""
        ...

    async def close(self, code: int = 1000) -> None:
        """Close, within a second or so; harmless if closed."""
        ...


Opener = Callable[[str, Mapping[str, str]], Awaitable[Socket]]
"""Opens a connection to a URL with these extra headers, or raises ConnectError."""


class WebSocket:
    """A socket of the websockets package."""

    def __init__(self, connection: ClientConnection) -> None:
        self._connection = connection

    async def send(self, frame: bytes) -> None:
        try:
            await self._connection.send(frame, text=True)
        except ConnectionClosed as closed:
            raise _closed(closed) from None

    async def receive(self) -> bytes:
        try:
            return await self._connection.recv(decode=False)
        except ConnectionClosed as closed:
            raise _closed(closed) from None

    async def close(self, code: int = 1000) -> None:
        await self._connection.close(code)


def _closed(fault: ConnectionClosed) -> SocketClosed:
    frame = fault.rcvd
    return SocketClosed(1006, "") if frame is None else SocketClosed(frame.code, frame.reason)


async def open_websocket(url: str, headers: Mapping[str, str]) -> Socket:
    """Connect to a ws:// or wss:// URL. Raises ConnectError with the address, the cause and what to do."""
    parts = urlsplit(url)
    address = parts.netloc or url
    proxy: Literal[True] | None = None if parts.hostname in _LOOPBACK else True
    try:
        connection = await connect(
            url,
            additional_headers=dict(headers),
            compression=None,
            max_size=MAX_FRAME_BYTES,
            open_timeout=OPEN_TIMEOUT_S,
            close_timeout=CLOSE_TIMEOUT_S,
            ping_interval=_PING_PERIOD_S,
            proxy=proxy,
        )
    except InvalidURI as fault:
        raise ConnectError(f"{url!r} is not a usable address: write ws://HOST:PORT or wss://HOST") from fault
    except InvalidStatus as fault:
        raise _refused(address, fault.response.status_code, bytes(fault.response.body or b"")) from fault
    except (InvalidHandshake, EOFError) as fault:
        raise ConnectError(f"{address} does not speak WebSocket ({fault}): is it the right port?") from fault
    except TimeoutError as fault:
        raise ConnectError(f"{address} did not answer within {OPEN_TIMEOUT_S:.0f} s: is the server up?") from fault
    except OSError as fault:
        hint = "is the server running? Start one with: duologue serve"
        raise ConnectError(f"cannot connect to {address} ({fault.strerror or fault}): {hint}") from fault
    return WebSocket(connection)


def _refused(address: str, status: int, body: bytes) -> ConnectError:
    text = body.decode("utf-8", "replace").strip()
    said = f": {text[:200]}" if text else ""
    match status:
        case 401 | 403:
            hint = "; give the server's key (api_key=, --api-key or DUOLOGUE_API_KEY)"
        case 404:
            hint = "; is the path right? The server's endpoint is /v1/realtime"
        case 429 | 503:
            hint = "; the server has no free place for this session now, try again later"
        case _:
            hint = ""
    return ConnectError(f"{address} refused the connection with HTTP {status}{said}{hint}", status=status)
