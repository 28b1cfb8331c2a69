"""The scene in which a stage worker is killed in mid-conversation.

What must follow: an error that says why; the answer fails, and either the session ends in order or it lives on and
answers the next question; every response has its terminal, the worker is back within five seconds, a new session is
answered, and nothing is left behind.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
from collections.abc import Callable
from typing import Final

import msgspec

from duologue.demo.ledger import Answer, Ledger
from duologue.demo.process import ServerProcess
from duologue.demo.report import Failure, KillReport
from duologue.demo.usage import ProcessFigures, list_processes, tree_of

BACK_WITHIN_S: Final = 5.0
_GIVE_UP_S: Final = 30.0
_POLL_S: Final = 0.05


class Victim(msgspec.Struct, frozen=True, kw_only=True):
    """The worker that was killed, and the server's processes before."""

    process: ProcessFigures
    workers: tuple[int, ...]


def choose_victim(server_pid: int, processes: list[ProcessFigures]) -> Victim | None:
    """The server's child with the most memory: a stage with a model. ``None`` if it has no workers."""
    children = [process for process in processes if process.parent == server_pid and not process.ended]
    if not children:
        return None
    workers = tuple(process.pid for process in tree_of(server_pid, processes) if process.pid != server_pid)
    return Victim(process=max(children, key=lambda child: child.rss_bytes), workers=workers)


def kill_worker(server: ServerProcess) -> Victim | None:
    """Kill it at once, as the kernel does when memory is short."""
    victim = choose_victim(server.pid, list_processes())
    if victim is not None:
        os.kill(victim.process.pid, signal.SIGKILL)
    return victim


async def await_recovery(server: ServerProcess, victim: Victim, *, since_s: float) -> float | None:
    """Seconds from `since_s` (loop time) until as many workers run as before and the server is ready again."""
    now: Callable[[], float] = asyncio.get_running_loop().time
    while now() - since_s < _GIVE_UP_S:
        tree = tree_of(server.pid, list_processes())
        alive = [process.pid for process in tree if process.pid != server.pid and not process.ended]
        if victim.process.pid not in alive and len(alive) >= len(victim.workers) and await server.ready():
            return now() - since_s
        await asyncio.sleep(_POLL_S)
    return None


async def sessions_left(server: ServerProcess) -> int | None:
    """Sessions and slots that the server still holds; ``None`` if it does not tell."""
    status, body = await server.fetch("/health")
    if status != 200:
        return None
    try:
        health = json.loads(body)
        return int(health["sessions"]) + int(health["slots"]["used"])
    except (ValueError, KeyError, TypeError):
        return None


def judge_kill(kill: KillReport, *, left_behind: int | None) -> tuple[Failure, ...]:
    """What went wrong, if anything."""
    faults = []
    if kill.error_code is None:
        faults.append("nothing said why the answer was lost: there was no error code")
    if kill.terminal is None and not kill.same_session_answered:
        faults.append("the session neither ended nor answered again after its worker was killed")
    if kill.response_status not in ("failed", "cancelled"):
        faults.append(f"the answer that lost its worker ended as {kill.response_status!r}, not as failed")
    if kill.responses_without_terminal:
        faults.append(f"responses without exactly one response.done: {', '.join(kill.responses_without_terminal)}")
    if kill.worker_back_s is None:
        faults.append(f"the worker did not come back within {_GIVE_UP_S:.0f} s")
    elif kill.worker_back_s > BACK_WITHIN_S:
        faults.append(
            f"the worker was back after {kill.worker_back_s:.1f} s, at most {BACK_WITHIN_S:.0f} s are allowed"
        )
    if not kill.new_session_answered:
        faults.append("a new session was not answered after the worker came back")
    if kill.processes_after != kill.processes_before:
        faults.append(f"the server had {kill.processes_before} processes before and {kill.processes_after} after")
    if left_behind:
        faults.append(f"the server still holds {left_behind} sessions or slots after all were closed")
    return tuple(Failure(code="worker_kill", turn=2, message=fault) for fault in faults)


def _lost_answer(ledger: Ledger) -> Answer | None:
    """The answer that lost its worker: the one to turn 2 that failed. A session that goes on may have answered anew."""
    if len(ledger.turns) < 2:
        return None
    answers = [ledger.answers[response_id] for response_id in ledger.turns[1].response_ids]
    return next((answer for answer in answers if answer.status == "failed"), ledger.answer_to(2))


def kill_report(
    victim: Victim, ledger: Ledger, *, back_s: float | None, answered: bool, processes_after: int
) -> KillReport:
    """The facts, from the ledger of the session that lost its worker."""
    errors = [text for text in ledger.errors if text]
    lost = _lost_answer(ledger)
    again = ledger.answer_to(3) if len(ledger.turns) >= 3 else None
    said = lost.error if lost is not None and lost.error else errors[-1] if errors else None
    code = ledger.ended_code or (said.partition(":")[0] if said else None)
    return KillReport(
        killed_pid=victim.process.pid,
        killed_process=victim.process.command,
        error_code=code,
        error_message=said,
        terminal=ledger.ended,
        response_status=lost.status if lost is not None else None,
        same_session_answered=(again is not None and again.first_audio_s is not None) if ledger.ended is None else None,
        responses_without_terminal=tuple(
            answer.response_id for answer in ledger.answers.values() if answer.terminals != 1
        ),
        worker_back_s=None if back_s is None else round(back_s, 2),
        new_session_answered=answered,
        processes_before=len(victim.workers) + 1,
        processes_after=processes_after,
    )
