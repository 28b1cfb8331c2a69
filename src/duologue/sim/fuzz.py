"""Coverage-guided fuzzing of whatever decodes bytes of a peer: nothing may come out but a value or the documented errors.

An input is kept and mutated further when it reaches something new: a line of Python, a kind of value, or an error that says
something else. The last stands for the branches inside the JSON and MessagePack decoders, which no tracer sees.

Rules kept here: a seed decides a run; a crash is reported with the input that caused it; the tracer watches only the
decoder's own modules.
"""

from __future__ import annotations

import random
import re
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any, Final, Literal, get_args

import msgspec

from duologue.engine.stages import frames
from duologue.outputs import RequestOutput, SamplingParams, StagePrompt, StageRequest
from duologue.sim.conversation import Conversation
from duologue.sim.orders import MAKERS
from duologue.sim.outcome import live
from duologue.sim.plan import Choices
from duologue.sim.swarm import draw
from duologue.wire import WireFault, decode_client_event, decode_server_event, encode
from duologue.wire import client_events as client
from duologue.wire.decoder import DUPLEX_CLIENT_TYPES, SERVER_TYPES, Dialect

Target = Literal["ga", "duplex", "server", "worker", "engine"]
TARGETS: Final[tuple[Target, ...]] = get_args(Target)
MAX_BYTES: Final = 4_096
MAX_CORPUS: Final = 4_000
HEARD_IN: Final = 6  # simulated runs whose clients' frames are where mutation begins
_WATCHED: Final = ("/duologue/wire/", "/duologue/audio/", "/duologue/engine/stages/frames")
_WORDS: Final = re.compile(r"`[^`]*`|'[^']*'|\d+")
_EXTREMES: Final = (b"0", b"-1", b"1e999", b"9223372036854775808", b"null", b"true", b'""', b"[]", b"{}", b'"\\ud800"')
_TOKENS: Final = (
    b'"type":',
    b'"event_id":"e"',
    b'"audio":"AAAA"',
    b'"session":{',
    b"}",
    b"]",
    b",",
    b"\xff",
    b"\\u0000",
)


class Crash(msgspec.Struct, frozen=True):
    """An input, and the exception that must not have come out."""

    data: bytes
    error: str


class Report(msgspec.Struct, kw_only=True):
    """What a run of the fuzzer saw. ``reached`` counts distinct lines, values and errors."""

    target: Target
    seed: int
    runs: int = 0
    reached: int = 0
    corpus: int = 0
    seconds: float = 0.0
    crashes: list[Crash] = []


class Fuzzer:
    """One target, one seed."""

    def __init__(self, target: Target, seed: int = 0) -> None:
        self.report = Report(target=target, seed=seed)
        self._dice = random.Random(f"fuzz:{target}:{seed}")
        self._decode = DECODERS[target]
        self._corpus = list(SEEDS[target]())
        self._known: set[object] = set()
        self._lines: set[tuple[object, int]] = set()

    @property
    def corpus(self) -> list[bytes]:
        """The inputs that reached something when they were new, those that it began with included."""
        return list(self._corpus)

    def run(self, runs: int | None = None, seconds: float | None = None) -> Report:
        """Go on for so many inputs, or so long; at most ten crashes are kept."""
        report, begin = self.report, time.monotonic()
        last = None if runs is None else report.runs + runs
        queue = list(self._corpus) if not report.runs else []
        with self._traced():
            while (last is None or report.runs < last) and len(report.crashes) < 10:
                if seconds is not None and time.monotonic() - begin >= seconds:
                    break
                data = queue.pop() if queue else self._mutated()
                report.runs += 1
                if self._reaches_something(data) and len(self._corpus) < MAX_CORPUS:
                    self._corpus.append(data)
        report.reached, report.corpus = len(self._known), len(self._corpus)
        report.seconds += time.monotonic() - begin
        return report

    def _reaches_something(self, data: bytes) -> bool:
        self._lines.clear()
        seen: object
        try:
            seen = type(self._decode(data)).__name__
        except Documented as fault:
            seen = _WORDS.sub("#", str(fault))
        except Exception as fault:
            self.report.crashes.append(Crash(data, f"{type(fault).__name__}: {fault}"))
            seen = type(fault).__name__
        before = len(self._known)
        self._known.add(seen)
        self._known |= self._lines
        return len(self._known) > before

    @contextmanager
    def _traced(self) -> Iterator[None]:
        lines = self._lines

        def line(frame: FrameType, event: str, arg: object) -> Any:
            del arg
            if event == "line":
                lines.add((frame.f_code, frame.f_lineno))
            return line

        def call(frame: FrameType, event: str, arg: object) -> Any:
            del event, arg
            return line if any(part in frame.f_code.co_filename for part in _WATCHED) else None

        previous = sys.gettrace()
        sys.settrace(call)
        try:
            yield
        finally:
            sys.settrace(previous)

    def _mutated(self) -> bytes:
        dice = self._dice
        # The newest half is what was reached last: there is most to find around it.
        corpus = self._corpus[len(self._corpus) // 2 :] if dice.random() < 0.5 else self._corpus
        data = bytearray(dice.choice(corpus))
        for _ in range(dice.choice((1, 1, 1, 2, 4, 8))):
            self._mutate(data)
        return bytes(data[:MAX_BYTES])

    def _mutate(self, data: bytearray) -> None:
        dice = self._dice
        start = dice.randrange(len(data) + 1)
        end = min(len(data), start + dice.choice((1, 1, 2, 4, 16, 64)))
        match dice.randrange(8):
            case 0 if data:
                data[start % len(data)] ^= 1 << dice.randrange(8)
            case 1:
                del data[start:end]
            case 2:
                data[start:start] = data[start:end] * dice.choice((1, 1, 2, 40))
            case 3:
                data[start:end] = dice.choice(_EXTREMES)
            case 4:
                data[start:start] = dice.choice(_TOKENS)
            case 5:
                other = dice.choice(self._corpus)
                data[start:] = other[dice.randrange(len(other) + 1) :]
            case 6:
                data[start:start] = dice.choice((b"[", b'{"a":', b"\x91", b"\x81\xa1a")) * dice.choice((1, 60, 1_500))
            case _:
                data[start:end] = dice.randbytes(dice.choice((1, 2, 5)))


class Documented(Exception):
    """The decoder refused its input in a way that its documentation names."""


def _client(dialect: Dialect) -> Callable[[bytes], object]:
    def decode(data: bytes) -> object:
        try:
            event = decode_client_event(data, dialect)
        except WireFault as fault:
            raise Documented(f"{fault.code.value} {fault.message}") from None
        again = decode_client_event(encode(event), dialect)
        if again != event and "nan" not in repr(event):
            raise AssertionError(f"{event!r} became {again!r}")
        return event

    return decode


def _server(data: bytes) -> object:
    try:
        return decode_server_event(data)
    except ValueError as fault:
        raise Documented(str(fault)) from None


def _stream(decoder: msgspec.msgpack.Decoder[Any]) -> Callable[[bytes], object]:
    def feed(data: bytes, size: int) -> list[object]:
        reader: frames.FrameReader[object] = frames.FrameReader(decoder)
        try:
            return [
                message for start in range(0, len(data), size) for message in reader.feed(data[start : start + size])
            ]
        except ValueError as fault:
            raise Documented(str(fault)) from None

    def decode(data: bytes) -> object:
        whole = feed(data, max(len(data), 1))
        # Compared as they would be sent: NaN is not equal to itself, and not every value has a representation of its own.
        if len(data) < 200 and msgspec.msgpack.encode(feed(data, 3)) != msgspec.msgpack.encode(whole):
            raise AssertionError("a stream means something else when it comes in pieces")
        return whole[0] if whole else None

    return decode


def _client_seeds() -> list[bytes]:
    talk = Conversation("ann.1", "ann", "duplex", Choices(), session_id="s", token="t")
    talk.items, talk.responses = ["item_1"], ["resp_1"]
    made = [encode(make(talk, pick, "e")) for make in MAKERS.values() for pick in range(8)]
    bare = [b'{"type":"%s"}' % name.encode() for name in sorted(DUPLEX_CLIENT_TYPES)]
    return [*made, *bare, encode(client.AudioAppend(audio=bytes(64)))]


def _server_seeds() -> list[bytes]:
    bare = [b'{"type":"%s"}' % name.encode() for name in sorted(SERVER_TYPES)]
    seen: dict[str, bytes] = {}
    for seed in range(HEARD_IN):
        world, _ = live(draw(seed))
        heard = (
            (heard for talker in world.talkers for talk in talker.conversations for heard in talk.heard)
            if world
            else ()
        )
        seen.update({type(one.event).__name__: encode(one.event) for one in heard if one.event is not None})
    return [*bare, *seen.values(), b'{"type":"no.such"}']


def _worker_seeds() -> list[bytes]:
    write = frames.FrameWriter().frame
    messages = (frames.Abort((1,)), frames.Ping(), frames.Stop(), frames.Call(1, "join", ("a", 1)), *_more())
    return [bytes(write(message)) for message in messages]


def _more() -> tuple[frames.ToWorker, ...]:
    prompt = StagePrompt(text="go on", audio=bytes(8), audio_rate_hz=16_000)
    request = StageRequest(request_id="r", external_req_id="r", prompt=prompt, params=SamplingParams())
    return frames.Configure("a.b:c", {"x": 1}), frames.Submit(1, request), frames.Update(1, request)


def _output() -> frames.Output:
    return frames.Output(1, RequestOutput(request_id="r", text="x", audio=bytes(8), metadata={"a": 1, "b": None}))


def _engine_seeds() -> list[bytes]:
    write = frames.FrameWriter().frame
    messages = (frames.Ready(), frames.StartFailed("x"), frames.Pong(), frames.Returned(1, {"a": b"b"}), _output())
    return [bytes(write(message)) for message in messages]


DECODERS: Final[dict[Target, Callable[[bytes], object]]] = {
    "ga": _client("ga"),
    "duplex": _client("duplex"),
    "server": _server,
    "worker": _stream(frames.to_worker),
    "engine": _stream(frames.from_worker),
}
SEEDS: Final[dict[Target, Callable[[], list[bytes]]]] = {
    "ga": _client_seeds,
    "duplex": _client_seeds,
    "server": _server_seeds,
    "worker": _worker_seeds,
    "engine": _engine_seeds,
}
