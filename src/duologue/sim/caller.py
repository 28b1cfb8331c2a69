"""A simulated client of the HTTP endpoints, without a socket: asks, reads at its pace, and stays or goes away.

Rules kept here: what is sent comes from the plan alone; every request must end, in a whole answer, a broken one or none, and
somebody who stays and was refused nothing gets a whole one.
"""

from __future__ import annotations

import asyncio
import base64
from collections import deque
from collections.abc import MutableMapping
from typing import Any, Final, Protocol

import msgspec

from duologue.audio.wav import wav_header
from duologue.server.transport import CONNECTION
from duologue.sim.loop import VirtualRuntime
from duologue.sim.plan import Call, Plan
from duologue.sim.site import MODEL, Site
from duologue.sim.tape import cut
from duologue.sim.trace import Trace

_PATHS: Final = {"speech": "/v1/audio/speech", "transcription": "/v1/audio/transcriptions"}
_RATE_HZ: Final = 16_000
_BOUNDARY: Final = b"x0x0x"
_LIMIT_S: Final = 120.0
CLOSE_S: Final = 0.01

Message = MutableMapping[str, Any]


class Surroundings(Protocol):
    """What a caller needs of the world."""

    runtime: VirtualRuntime
    trace: Trace
    left_over: list[str]
    plan: Plan

    def site(self, index: int) -> Site: ...


class Caller:
    """One request."""

    def __init__(self, world: Surroundings, call: Call) -> None:
        self.call = call
        self.task: asyncio.Task[None] | None = None
        limits = world.plan.deployments[call.deployment].turns
        slow = call.slow_ms > 1_000 * (limits.get("write_timeout_s") or 30.0) or bool(world.plan.replica_faults)
        self.disturbed = slow or "max_unread_bytes" in limits  # it may end in any way
        self._world = world
        self._left = asyncio.Event()
        body, self._media_type = _body(call)
        size = -(-len(body) // call.pieces)
        self._pieces = deque(body[start : start + size] for start in range(0, len(body), size))
        self._status = 0
        self._size = 0
        self._complete = False

    async def run(self) -> None:
        """From the arrival of the head to the end of the answer."""
        call, world = self.call, self._world
        await asyncio.sleep(call.at_ms / 1000)
        site = world.site(call.deployment)
        if site.stopped_at is not None:
            return
        world.trace.count(f"call.{call.kind}")
        if call.leave_ms is not None:
            world.runtime.call_at(world.runtime.now() + call.leave_ms / 1000, self.leave)
        app = site.server.app(self._scope(), self._receive, self._send)
        self.task = world.runtime.spawn(_whole(app), name=f"call {call.name}")
        _, late = await asyncio.wait([self.task], timeout=_LIMIT_S)
        said = "late" if late else "cancelled" if self.task.cancelled() else f"{self._status} {self._size}"
        world.trace.note(call.name, "answered", said)
        if late:
            world.left_over.append(f"{call.name} was not answered within {_LIMIT_S:g} s")
            self.task.cancel()
        elif not (self.disturbed or self._complete or site.stopped_at is not None):
            world.left_over.append(f"{call.name} stayed and got no whole answer: {said}")

    def leave(self) -> None:
        """The client goes away."""
        self.disturbed = True
        self._left.set()

    def _scope(self) -> dict[str, Any]:
        path = _PATHS.get(self.call.kind, "/v1/chat/completions")
        return {
            "type": "http",
            "method": "POST",
            "path": path,
            "raw_path": path.encode(),
            "root_path": "",
            "query_string": b"",
            "headers": [(b"content-type", self._media_type.encode()), (b"authorization", b"Bearer ann")],
            "scheme": "http",
            "http_version": "1.1",
            "server": ("sim", 80),
            "client": ("sim", 1),
            "state": {CONNECTION: _Transport(self._left)},
        }

    async def _receive(self) -> Message:
        if self._pieces:
            await asyncio.sleep(self.call.gap_ms / 1000)
            if not self._left.is_set():
                return {"type": "http.request", "body": self._pieces.popleft(), "more_body": bool(self._pieces)}
        await self._left.wait()
        return {"type": "http.disconnect"}

    async def _send(self, message: Message) -> None:
        if self.call.slow_ms:
            await asyncio.sleep(self.call.slow_ms / 1000)
        if message["type"] == "http.response.start":
            self._status = message["status"]
        else:
            self._size += len(message["body"])
            self._complete = not message["more_body"]


class _Transport:
    """What the server may do to the connection under a request: the client notices at once."""

    def __init__(self, left: asyncio.Event) -> None:
        self._left = left

    def close(self) -> None:
        """In order."""
        asyncio.get_running_loop().call_later(CLOSE_S, self._left.set)

    abort = close


async def _whole(app: Any) -> None:
    try:
        await app
    except RuntimeError as fault:
        if "broken off" not in str(fault):  # how an answer that has begun says that it will never end
            raise


def _body(call: Call) -> tuple[bytes, str]:
    if call.broken:
        return b"{", "application/json"
    if call.kind == "transcription":
        return _form(_wav(), stream="true" if call.stream else "false")
    return msgspec.json.encode(_payload(call)), "application/json"


def _payload(call: Call) -> dict[str, object]:
    if call.kind == "speech":
        events = {"stream_format": "sse"} if call.stream else {}
        return {"model": MODEL, "input": "One thing. Another.", "voice": "alloy", "response_format": "pcm", **events}
    messages: list[dict[str, object]] = [{"role": "user", "content": "an errand"}]
    if call.kind == "heard_chat":  # what was said before is put into words first
        data = base64.b64encode(_wav()).decode()
        audio = {"type": "input_audio", "input_audio": {"data": data, "format": "wav"}}
        spoken: dict[str, object] = {"role": "user", "content": [audio]}
        messages = [spoken, {"role": "assistant", "content": "Yes?"}, spoken]
    asked: dict[str, object] = {"model": MODEL, "messages": messages}
    if call.stream:
        asked["stream"] = True
    if call.kind == "spoken_chat":
        asked |= {
            "modalities": ["text", "audio"],
            "audio": {"voice": "alloy", "format": "pcm16" if call.stream else "wav"},
        }
    return asked


def _wav() -> bytes:
    pcm = cut("plain", 0, _RATE_HZ // 2)
    return wav_header(_RATE_HZ, len(pcm)) + pcm


def _form(content: bytes, **fields: str) -> tuple[bytes, str]:
    fields = {"model": MODEL, **fields}
    parts = [
        b'--%s\r\nContent-Disposition: form-data; name="%s"\r\n\r\n%s\r\n' % (_BOUNDARY, key.encode(), value.encode())
        for key, value in fields.items()
    ]
    parts.append(
        b'--%s\r\nContent-Disposition: form-data; name="file"; filename="a.wav"\r\nContent-Type: audio/wav\r\n\r\n%s\r\n'
        % (_BOUNDARY, content)
    )
    return b"".join(parts) + b"--%s--\r\n" % _BOUNDARY, f"multipart/form-data; boundary={_BOUNDARY.decode()}"
