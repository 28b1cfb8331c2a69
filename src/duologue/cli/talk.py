"""`duologue talk`: one conversation from the command line.

Rules kept here: what is understood and what is answered goes to standard output, line by line; everything else to
standard error; a file that was sent and never answered is a failure.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import msgspec
import typer

from duologue.audio import read_wav, write_wav
from duologue.cli.exchange import RATE_HZ, TalkOptions, settings, show
from duologue.cli.fault import CommandError
from duologue.cli.sound import talk_by_microphone
from duologue.client import ClientSession, connect
from duologue.wire.server_events import AudioDelta, ResponseDone

_CHUNK_S = 0.04
_ROOM_AFTER_S = 20.0  # silence a microphone would go on to send: the turn detectors need to hear it


class Outcome(msgspec.Struct, frozen=True, kw_only=True):
    """What came back: the answer's audio (PCM16, 24 kHz), and how it ended."""

    audio: bytes
    status: str | None


def run_talk(options: TalkOptions) -> int:
    """Talk; 0 if it was answered. Raises CommandError, ClientError, AudioFormatError or OSError."""
    if options.mic == (options.wav is not None):
        raise CommandError("say what to talk with: --wav FILE or --mic", "example: duologue talk --wav question.wav")
    if options.mic:
        return talk_by_microphone(options)
    assert options.wav is not None
    pcm16, rate_hz = read_wav(options.wav)
    outcome = asyncio.run(_talk(options, pcm16, rate_hz))
    if options.out is not None and outcome.audio:
        write_wav(options.out, outcome.audio, RATE_HZ)
        typer.echo(f"answer written to {options.out}", err=True)
    if outcome.status is None and outcome.audio:
        raise CommandError(f"the answer was not over after {options.timeout_s:.0f} s", "wait longer: --timeout SECONDS")
    if outcome.status is None:
        raise CommandError(
            f"no answer within {options.timeout_s:.0f} s",
            "is there speech in the file? `--fast` ends the turn at the end of the file, whatever a detector thinks",
        )
    return 0 if outcome.status in ("completed", "incomplete") and outcome.audio else 1


async def _talk(options: TalkOptions, pcm16: bytes, rate_hz: int) -> Outcome:
    async with connect(options.url, api_key=options.api_key, session=settings(options, rate_hz)) as session:
        return await converse(session, pcm16, rate_hz, options, say=typer.echo)


async def converse(
    session: ClientSession, pcm16: bytes, rate_hz: int, options: TalkOptions, *, say: Callable[[str], None]
) -> Outcome:
    """Send the audio, and follow the session until an answer is over or time is up."""
    sender = asyncio.create_task(
        _in_time(session.append, pcm16, rate_hz) if options.realtime else _at_once(session, pcm16)
    )
    audio = bytearray()
    status: str | None = None
    limit_s = len(pcm16) / 2 / rate_hz * options.realtime + options.timeout_s
    try:
        async with asyncio.timeout(limit_s):
            async for event in session.events():
                if isinstance(event, AudioDelta):
                    audio += event.delta
                show(event, say)
                if isinstance(event, ResponseDone) and event.response.status != "cancelled":
                    status = event.response.status
                    break
                if isinstance(event, ResponseDone):
                    audio.clear()  # the speaker went on, so this answer was withdrawn
    except TimeoutError:
        pass
    finally:
        sender.cancel()
        await asyncio.gather(sender, return_exceptions=True)
    return Outcome(audio=bytes(audio), status=status)


async def _in_time(send: Callable[[bytes], Awaitable[None]], pcm16: bytes, rate_hz: int) -> None:
    """The file as a microphone would send it, and the quiet room after it."""
    now = asyncio.get_running_loop().time
    start_s = now()
    chunk_bytes = 2 * round(rate_hz * _CHUNK_S)
    stream = pcm16 + bytes(2 * round(rate_hz * _ROOM_AFTER_S))
    for begin in range(0, len(stream), chunk_bytes):
        chunk = stream[begin : begin + chunk_bytes]
        due_s = start_s + (begin + len(chunk)) / 2 / rate_hz
        await asyncio.sleep(max(0.0, due_s - now()))
        await send(chunk)


async def _at_once(session: ClientSession, pcm16: bytes) -> None:
    await session.append(pcm16)
    await session.commit(create_response=True)
