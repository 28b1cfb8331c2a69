"""The demo from beginning to end: server, conversation, files, report.

Rules kept here: whatever happens, the server is stopped and what was recorded is written; the report is written last,
so a report that is there is complete.
"""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path

import msgspec

from duologue.audio import interleave, write_wav
from duologue.client import connect
from duologue.demo.conversation import Conversation
from duologue.demo.kill import await_recovery, judge_kill, kill_report, kill_worker, sessions_left
from duologue.demo.microphone import Microphone
from duologue.demo.player import Player
from duologue.demo.process import ServerProcess, running_server
from duologue.demo.prompts import PROMPT_LOG_VARIABLE, read_prompts
from duologue.demo.recorder import EventRecorder
from duologue.demo.report import (
    Evidence,
    Failure,
    KillReport,
    Plan,
    Report,
    find_failures,
    measures_of,
    turn_reports,
)
from duologue.demo.scene import RATE_HZ, allow_long_answers, ask_again, four_turns, one_turn, opening_settings
from duologue.demo.script import Script, write_script
from duologue.setup.weights import WEIGHTS

Note = Callable[[str], None]
"""Told what happens next, one line at a time."""

FILES = ("conversation.wav", "events.jsonl", "report.json", "prompts.jsonl", "server.log")


class DemoOptions(msgspec.Struct, frozen=True, kw_only=True):
    """`config`: a server configuration other than the embedded default."""

    out_dir: Path
    models_dir: Path
    config: Path | None = None
    kill_worker: bool = False


class _Take(msgspec.Struct, frozen=True, kw_only=True):
    """One recorded conversation."""

    session_id: str
    conversation: Conversation
    heard: dict[str, str]
    duration_s: float


async def run_demo(options: DemoOptions, note: Note) -> Report:
    """Hold the conversation and write the files; the report says whether all was well.

    Raises ServerError, ConnectError, ModelUnavailableError or OSError if it could not even begin, and OSError if a file
    could not be written: session and server have ended in order then.
    """
    out_dir = options.out_dir
    _clear(out_dir)
    note("preparing the voices and starting the server")
    writing = asyncio.create_task(asyncio.to_thread(write_script, options.models_dir, RATE_HZ))
    arguments = [str(options.config)] if options.config is not None else []
    environment = {
        PROMPT_LOG_VARIABLE: str((out_dir / "prompts.jsonl").resolve()),
        "DUOLOGUE_MODELS": str(options.models_dir),
    }
    try:
        async with running_server(out_dir / "server.log", arguments=arguments, environment=environment) as server:
            script = await writing
            models = await server.models()
            note(f"talking to {server.url} ({', '.join(models) or 'unnamed model'})")
            scene = _kill_scene if options.kill_worker else _ordinary_scene
            take, plan, kill, faults = await scene(server, script, out_dir, note)
            usage = server.measure()
            peak_rss_bytes = server.peak_rss_bytes
    finally:
        writing.cancel()
        await asyncio.gather(writing, return_exceptions=True)
    report = _report(take, plan, kill, faults, out_dir, models)
    report = msgspec.structs.replace(
        report, cpu_seconds=round(usage.cpu_s, 2), rss_mb=round(peak_rss_bytes / 1_000_000, 1)
    )
    write_files(out_dir, {"report.json": partial(write_report, report=report)})
    return report


def _clear(out_dir: Path) -> None:
    """Leave nothing of an earlier run that could be taken for this one's."""
    out_dir.mkdir(parents=True, exist_ok=True)
    for name in FILES:
        (out_dir / name).unlink(missing_ok=True)


_Outcome = tuple[_Take, Plan, KillReport | None, tuple[Failure, ...]]


async def _ordinary_scene(server: ServerProcess, script: Script, out_dir: Path, note: Note) -> _Outcome:
    async with _talking(server, out_dir) as (conversation, finish):
        await four_turns(conversation, script)
        take = await finish()
    note("conversation over, checking it")
    return take, Plan(), None, ()


async def _kill_scene(server: ServerProcess, script: Script, out_dir: Path, note: Note) -> _Outcome:
    now = asyncio.get_running_loop().time
    back_s: float | None = None
    async with _talking(server, out_dir) as (conversation, finish):
        await conversation.pause()
        conversation.say(script.recording)
        await conversation.hear_out()
        await allow_long_answers(conversation)
        conversation.say(script.long_request)  # a long answer: its worker is busy when it dies
        await conversation.await_response()
        victim, killed_s = kill_worker(server), now()
        if victim is not None:
            note(f"killed worker {victim.process.pid} ({victim.process.command})")
            # First of all: what is waited for before this would count as time that the worker was away.
            back_s = await await_recovery(server, victim, since_s=killed_s)
            await conversation.until(conversation.answered, 10.0)
            note("the worker is back" if back_s is not None else "the worker did not come back")
            if conversation.ledger.ended is None:
                await ask_again(conversation, script)
        take = await finish()
    plan = Plan(turns=2, interrupted=None, follow_up=None)
    if victim is None:
        missing = Failure(code="worker_kill", turn=2, message="the server has no worker process that could be killed")
        return take, plan, None, (missing,)
    answered = await _new_session_answers(server, script, out_dir)
    after = len(server.measure().pids)
    kill = kill_report(victim, take.conversation.ledger, back_s=back_s, answered=answered, processes_after=after)
    return take, plan, kill, judge_kill(kill, left_behind=await sessions_left(server))


async def _new_session_answers(server: ServerProcess, script: Script, out_dir: Path) -> bool:
    second = out_dir / "after"
    second.mkdir(exist_ok=True)
    async with _talking(server, second) as (conversation, finish):
        await one_turn(conversation, script)
        take = await finish()
    answer = take.conversation.ledger.answer_to(1) if take.conversation.ledger.turns else None
    return answer is not None and answer.first_audio_s is not None


@asynccontextmanager
async def _talking(
    server: ServerProcess, out_dir: Path
) -> AsyncIterator[tuple[Conversation, Callable[[], Awaitable[_Take]]]]:
    """A session with microphone and loudspeaker on. The second value ends the conversation and gives the take."""
    origin_s = asyncio.get_running_loop().time()

    def now() -> float:
        return asyncio.get_running_loop().time() - origin_s

    recorder = EventRecorder(now=now, input_rate_hz=RATE_HZ, output_rate_hz=RATE_HZ)
    microphone = Microphone(RATE_HZ)
    player = Player(now=now, rate_hz=RATE_HZ)
    try:
        async with connect(server.url, session=opening_settings(), tap=recorder) as session:
            conversation = Conversation(session, microphone, player, now=now)

            async def finish() -> _Take:
                heard = await conversation.heard_texts()
                return _Take(session_id=session.session_id, conversation=conversation, heard=heard, duration_s=now())

            async with conversation.running():
                yield conversation, finish
    finally:
        writes: dict[str, Callable[[Path], None]] = {"events.jsonl": recorder.write}
        if microphone.position:
            sound = partial(write_sound, microphone=microphone, player=player, start_s=conversation.microphone_start_s)
            writes["conversation.wav"] = sound
        write_files(out_dir, writes)


def write_files(folder: Path, writes: Mapping[str, Callable[[Path], None]]) -> None:
    """Write each file, whatever becomes of the others. Then raises the first OSError, which names its file."""
    faults: list[OSError] = []
    for name, write in writes.items():
        path = folder / name
        try:
            write(path)
        except OSError as fault:  # a disk that is full says so without saying where
            faults.append(OSError(fault.errno, fault.strerror or str(fault), str(path)))
    if faults:
        raise faults[0]


def write_sound(path: Path, *, microphone: Microphone, player: Player, start_s: float) -> None:
    """Both sides on one clock: left the user, right what was heard of the assistant. The microphone began at `start_s`."""
    left = bytes(2 * round(start_s * RATE_HZ)) + microphone.track()
    right = player.track(len(left) / 2 / RATE_HZ)
    write_wav(path, interleave(left, right), RATE_HZ, channels=2)


def _report(
    take: _Take, plan: Plan, kill: KillReport | None, faults: tuple[Failure, ...], out_dir: Path, models: list[str]
) -> Report:
    conversation = take.conversation
    played = {
        response_id: heard.played_ms
        for response_id in conversation.ledger.answers
        if (heard := conversation.player.heard(response_id)) is not None
    }
    evidence = Evidence(
        ledger=conversation.ledger,
        played_ms={key: float(value) for key, value in played.items()},
        heard=take.heard,
        prompts=read_prompts(out_dir / "prompts.jsonl", take.session_id),
    )
    turns = turn_reports(evidence)
    failures = faults if kill is not None else (*find_failures(evidence, turns, plan), *faults)
    return Report(
        ok=not failures,
        failures=failures,
        turns=turns,
        measures=measures_of(turns, plan),
        models=_models(models),
        cpu_seconds=0.0,
        rss_mb=0.0,
        conversation_s=round(take.duration_s, 1),
        underruns=conversation.player.underruns,
        kill=kill,
    )


def _models(served: list[str]) -> dict[str, str]:
    """What was served, and the files that the embedded default is made of, by what they are for."""
    files = {
        weight.purpose: f"{weight.name} ({weight.requirement})"
        for weight in WEIGHTS
        if not weight.name.endswith(".wav")
    }
    return {"served": ", ".join(served), **files}


def write_report(path: Path, *, report: Report) -> None:
    """The report as indented JSON; the file appears only when it is whole."""
    part = path.with_suffix(".part")
    part.write_bytes(msgspec.json.format(msgspec.json.encode(report), indent=2) + b"\n")
    shutil.move(part, path)
