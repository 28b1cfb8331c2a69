"""Commands that come after all input before them: a commit, new settings, a function's result.

Rules kept here: they are carried out in wire order, each once the stage has what was appended before it, so that nothing that
they change reaches input that was sent earlier; if the stage refuses that input, or the session closes, each is answered with
an error that names it and changes nothing; a cancel waits for none of them, and what forgets the input forgets its commits.
"""

from __future__ import annotations

from collections import deque
from typing import assert_never

from duologue.engine.duplex.commands import CommitAudio, CreateItem, UpdateSession
from duologue.engine.duplex.core import conversation, intake, lifecycle, turns
from duologue.engine.duplex.core.state import SessionState
from duologue.errors import ErrorCode

MAX_WAITING_COMMANDS = 16


def receive(s: SessionState, command: CommitAudio | CreateItem | UpdateSession) -> None:
    """Take one; :func:`release`, at the end of the step, carries it out if nothing is in front of it."""
    if len(s.behind) < MAX_WAITING_COMMANDS:
        s.behind.append(command)
        return
    s.acted["commands"] += 1
    s.error(
        ErrorCode.INPUT_BACKPRESSURE,
        f"{MAX_WAITING_COMMANDS} commits, updates and results of functions wait for the input before them; wait for the "
        "answer to one before the next.",
        event_id=command.event_id,
    )


def release(s: SessionState) -> None:
    """Carry out what waits, as far as nothing is in front of it any more."""
    while s.phase == "open":
        wait = s.commit_wait
        if wait is not None:
            if not wait.ready or not s.tail.idle:
                return
            turns.carry_out_commit(s)
            intake.drain(s)
        elif s.judging is not None or not s.behind:
            return
        else:
            head = s.behind[0]
            if not isinstance(head, CommitAudio) and not _arrived(s):
                return
            _carry_out(s, s.behind.popleft())


def _arrived(s: SessionState) -> bool:
    """Whether all input so far is with the stage; what a lost placement had not taken is still to be submitted again."""
    return s.tail.idle and (s.rebuild_by is None or not s.resident_family)


def _carry_out(s: SessionState, command: CommitAudio | CreateItem | UpdateSession) -> None:
    match command:
        case CommitAudio():
            turns.commit_requested(s, command.event_id, bool(command.create_response) or s.auto_responds)
        case CreateItem():
            conversation.create_item(s, command)
        case UpdateSession():
            lifecycle.judge_update(s, command)
        case _:
            assert_never(command)


def tail_failed(s: SessionState) -> None:
    """The stage refused input that these commands came after: none of them is carried out, and each is told so."""
    wait, s.commit_wait = s.commit_wait, None
    behind, s.behind = s.behind, deque()
    if wait is not None:
        _aborted(s, wait.event_id, ErrorCode.COMMIT_ABORTED, "The commit was not carried out")
    for command in behind:
        match command:
            case CommitAudio():
                _aborted(s, command.event_id, ErrorCode.COMMIT_ABORTED, "The commit was not carried out")
            case CreateItem():
                _aborted(
                    s, command.event_id, ErrorCode.COMMIT_ABORTED, "The function's result was not used", "item.call_id"
                )
            case UpdateSession():
                _aborted(s, command.event_id, ErrorCode.SESSION_UPDATE_ABORTED, "The settings were not changed")
            case _:
                assert_never(command)
    if wait is not None:
        intake.drain(s)  # it stopped at the commit


def _aborted(s: SessionState, event_id: str | None, code: ErrorCode, what: str, param: str | None = None) -> None:
    message = f"{what}, because the model did not take input that was sent before it; send it again."
    s.error(code, message, event_id=event_id, param=param)
