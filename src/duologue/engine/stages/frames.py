"""What travels between a worker process and its parent, and how it is cut into frames.

A frame is four bytes of length (big endian) and one msgpack message. From :data:`RING_FROM_BYTES` on the message is put
into shared memory, and the frame holds the length with its highest bit set and eight bytes of position.

Requests travel under small numbers that the parent hands out, never reused: an output that was under way when its
request was aborted can't be taken for another's.
"""

from __future__ import annotations

import struct
from typing import Any, Final, Generic, TypeVar

import msgspec

from duologue.engine.stages.arena import Ring
from duologue.outputs import Options, RequestOutput, StageError, StageRequest

MAX_FRAME_BYTES: Final = 64 * 1024 * 1024
RING_FROM_BYTES: Final = 64 * 1024
_HEADER = struct.Struct(">I")
_RING_FRAME = struct.Struct(">IQ")
_IN_RING: Final = 1 << 31


class Configure(msgspec.Struct, frozen=True, array_like=True, tag=0):
    """First message: which stage to make. ``factory`` is ``package.module:name``, called with ``options`` by keyword."""

    factory: str
    options: Options
    log_level: str = "info"


class Submit(msgspec.Struct, frozen=True, array_like=True, tag=1):
    number: int
    request: StageRequest


class Update(msgspec.Struct, frozen=True, array_like=True, tag=2):
    number: int
    request: StageRequest


class Abort(msgspec.Struct, frozen=True, array_like=True, tag=3):
    numbers: tuple[int, ...]


class Ping(msgspec.Struct, frozen=True, array_like=True, tag=4):
    pass


class Stop(msgspec.Struct, frozen=True, array_like=True, tag=5):
    pass


class Call(msgspec.Struct, frozen=True, array_like=True, tag=6):
    """Call ``method`` of the stage code; answered by :class:`Returned` under the same number."""

    number: int
    method: str
    args: tuple[Any, ...]


ToWorker = Configure | Submit | Update | Abort | Ping | Stop | Call


class Ready(msgspec.Struct, frozen=True, array_like=True, tag=0):
    """The stage is loaded."""


class StartFailed(msgspec.Struct, frozen=True, array_like=True, tag=1):
    """The stage could not be made or loaded; the worker ends."""

    message: str


class Output(msgspec.Struct, frozen=True, array_like=True, tag=2):
    number: int
    output: RequestOutput


class Pong(msgspec.Struct, frozen=True, array_like=True, tag=3):
    pass


class Returned(msgspec.Struct, frozen=True, array_like=True, tag=4):
    """What came of a call: builtin types, or an error."""

    number: int
    value: Any
    error: StageError | None = None


FromWorker = Ready | StartFailed | Output | Pong | Returned

_ENCODER = msgspec.msgpack.Encoder()
to_worker = msgspec.msgpack.Decoder(ToWorker)
from_worker = msgspec.msgpack.Decoder(FromWorker)
MessageT = TypeVar("MessageT")


class FrameTooLarge(ValueError):
    """A message does not fit into a frame."""


class FrameWriter:
    """Turns messages into frames; large ones go through ``ring``. Call it in the order in which frames are sent."""

    __slots__ = ("_ring",)

    def __init__(self, ring: Ring | None = None) -> None:
        self._ring = ring

    def frame(self, message: ToWorker | FromWorker) -> bytes | bytearray:
        """``message`` as one frame. Raises :class:`FrameTooLarge`, or ``TypeError`` for what msgpack can't hold."""
        buffer = bytearray(_HEADER.size)
        _ENCODER.encode_into(message, buffer, _HEADER.size)
        length = len(buffer) - _HEADER.size
        if length > MAX_FRAME_BYTES:
            raise FrameTooLarge(f"{length} bytes are more than a message may have ({MAX_FRAME_BYTES})")
        if length >= RING_FROM_BYTES and self._ring is not None:
            position = self._ring.write(memoryview(buffer)[_HEADER.size :])
            if position is not None:
                return _RING_FRAME.pack(_IN_RING | length, position)
        _HEADER.pack_into(buffer, 0, length)
        return buffer


class FrameReader(Generic[MessageT]):
    """Turns a byte stream back into messages, fetching large ones from ``ring``."""

    __slots__ = ("_buffer", "_decoder", "_ring")

    def __init__(self, decoder: msgspec.msgpack.Decoder[MessageT], ring: Ring | None = None) -> None:
        self._buffer = bytearray()
        self._decoder = decoder
        self._ring = ring

    def feed(self, data: bytes) -> list[MessageT]:
        """Messages that are complete now. ``ValueError`` for a frame that can't be."""
        if self._buffer:
            self._buffer += data
            if len(self._buffer) < _HEADER.size or len(self._buffer) < _frame_size(self._buffer, 0):
                return []
            data = bytes(self._buffer)
            self._buffer.clear()
        view = memoryview(data)
        messages = []
        start = 0
        while len(data) - start >= _HEADER.size:
            end = start + _frame_size(data, start)
            if end > len(data):
                break
            messages.append(self._message(view[start:end]))
            start = end
        if start < len(data):
            self._buffer += view[start:]
        return messages

    def _message(self, whole: memoryview) -> MessageT:
        (head,) = _HEADER.unpack_from(whole)
        if not head & _IN_RING:
            return self._decoded(whole[_HEADER.size :])
        if self._ring is None:
            raise ValueError("a frame refers to shared memory, and there is none")
        head, position = _RING_FRAME.unpack(whole)
        length = head & ~_IN_RING
        with self._ring.view(position, length) as body:
            message = self._decoded(body)
        self._ring.free(position, length)
        return message

    def _decoded(self, body: memoryview) -> MessageT:
        try:
            return self._decoder.decode(body)
        except RecursionError:
            raise ValueError("a message is nested too deeply") from None


def _frame_size(data: bytes | bytearray, start: int) -> int:
    (head,) = _HEADER.unpack_from(data, start)
    length: int = head & ~_IN_RING
    if length > MAX_FRAME_BYTES:
        raise ValueError(f"a frame says that it has {length} bytes; at most {MAX_FRAME_BYTES} are allowed")
    return _RING_FRAME.size if head & _IN_RING else _HEADER.size + length
