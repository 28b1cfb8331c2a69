"""Draws the transition tables of the session core as docs/state-machines/README.md. ``--check`` only compares.

python scripts/draw_state_machines.py [--check]

The tables are the truth (``duologue.engine.duplex.core.tables``); what a state or an event means is told here. A table,
state or event that has no words yet is an error, and so are words for one that is gone.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path

from duologue.engine.duplex.core.tables import TABLES, Table

PAGE = Path(__file__).resolve().parents[1] / "docs" / "state-machines" / "README.md"

ABOUT: Mapping[str, str] = {
    "session": "A session as a whole. Between `closing` and `closed` the stages are cleaned; nothing is accepted any more.",
    "turn": "Speech of the user between its onset and its becoming an item, or not.",
    "response": "One answer. It has exactly one terminal: `completed`, `cancelled` or `failed`.",
    "append": "One piece of input on its way to a stage. One is in flight at a time, in the order they came.",
    "tool_call": "A function that the model asked for. Its result is applied once, or not at all.",
    "lease": "Who owns the session. Resuming is a compare-and-swap on the generation.",
}

STATES: Mapping[str, Mapping[str, str]] = {
    "session": {
        "new": "admitted, not yet opened",
        "open": "taking commands, audio and results",
        "closing": "what was open has ended; the stages are being cleaned",
        "closed": "the terminal has left",
    },
    "turn": {
        "speaking": "the user speaks",
        "provisional": "a pause that may be the end: the answer is being prepared, nothing is sent",
        "committed": "it is an item of the conversation",
        "dropped": "forgotten: cleared, an acknowledgement, or one turn too many",
    },
    "response": {
        "created": "announced; the model has said nothing yet",
        "speaking": "content has come",
        "draining": "the model is done; the rest waits for its time to leave",
        "completed": "everything was sent",
        "cancelled": "stopped by the client or by speech",
        "failed": "its request was lost",
    },
    "append": {
        "queued": "waits for those before it",
        "in_flight": "submitted; the stage has not answered",
        "accepted": "the stage has it",
        "failed": "the stage did not take it",
        "void": "not wanted any more, and no stage has it",
        "orphan": "not wanted any more, but on its way: whatever the stage does with it is undone",
    },
    "tool_call": {
        "pending": "the client was asked; its result may come",
        "answered": "the result is an item of the conversation",
        "timed_out": "`tool_result_timeout_s` is over, and the client was told so",
        "cancelled": "the answer that asked was stopped, its epoch ended, or the client deleted the call",
    },
    "lease": {
        "attached": "a connection takes the output",
        "grace": "nobody does; the session waits `disconnect_grace_s` for one",
        "terminal": "over; nothing changes it any more",
    },
}

EVENTS: Mapping[str, Mapping[str, str]] = {
    "session": {
        "opened": "the manager admitted it",
        "close_begun": "the client, the manager or a fault ends it",
        "terminal_sent": "the stages are clean, or the time for that is over",
        "terminal_claimed": "somebody else sends the terminal",
    },
    "turn": {
        "candidate": "a pause of `candidate_ms`",
        "resumed": "speech is confirmed again",
        "committed": "the pause was the end, the silence was long enough, the client said so, or input stopped",
        "dropped": "cleared, an acknowledgement, or too many turns wait",
    },
    "response": {
        "content": "text or audio of the model",
        "generated": "the model ended its turn",
        "drained": "its last audio has left",
        "cancelled": "cancel, clear, barge-in or close",
        "failed": "the model, a stage, a submission or the session failed",
    },
    "append": {
        "submitted": "nothing is in flight and its turn has come",
        "accepted": "the stage took it",
        "rejected": "the stage did not take it, or not in time",
        "voided": "its request was cancelled, or an append before it failed",
    },
    "tool_call": {
        "answered": "`conversation.item.create` with a `function_call_output`",
        "timed_out": "its deadline came first",
        "cancelled": "cancel, barge-in, clear, close, or the deletion of the call",
    },
    "lease": {
        "attached": "a connection takes over without a new generation",
        "detached": "the connection is gone",
        "resumed": "a resume with the right generation won",
        "ended": "the session closes",
    },
}

HEAD = """# State machines

Every state of a session's parts and every transition that is allowed. A transition that no table has ends the session as
a broken invariant, so what is drawn here is all that can happen. [sessions.md](../sessions.md) tells the same as a story.

Drawn by `scripts/draw_state_machines.py` from `engine/duplex/core/tables.py`; a test compares the two.
"""


class Untold(ValueError):
    """A table and its words differ."""


def page(tables: Mapping[str, Table] = TABLES) -> str:
    """The whole page. Raises :class:`Untold` if a table, state or event has no words, or words are left over."""
    _same("tables", set(tables), set(ABOUT))
    return "\n".join([HEAD, *(section(name, table) for name, table in tables.items())])


def section(name: str, table: Table) -> str:
    """One table: its drawing, its states, its events."""
    states, events = _states(table), _events(table)
    _same(f"states of {name}", set(states), set(STATES[name]))
    _same(f"events of {name}", set(events), set(EVENTS[name]))
    lines = [f"## {name}", "", ABOUT[name], "", diagram(table), "", "| state | meaning |", "|---|---|"]
    lines += [f"| `{state}` | {STATES[name][state]} |" for state in states]
    lines += ["", f"| event | {' | '.join(f'`{state}`' for state in states)} | when |"]
    lines += ["|---" * (len(states) + 2) + "|"]
    for event in events:
        cells = [f"`{table[state, event]}`" if (state, event) in table else "" for state in states]
        lines.append(f"| `{event}` | {' | '.join(cells)} | {EVENTS[name][event]} |")
    return "\n".join([*lines, ""])


def diagram(table: Table) -> str:
    """The drawing of one table, as a block of mermaid."""
    ends = [state for state in _states(table) if not any(source == state for source, _ in table)]
    lines = ["```mermaid", "stateDiagram-v2", f"    [*] --> {next(iter(table))[0]}"]
    lines += [
        f"    {source} --> {after}: {', '.join(together)}" for (source, after), together in _arrows(table).items()
    ]
    return "\n".join([*lines, *(f"    {state} --> [*]" for state in ends), "```"])


def _same(what: str, coded: set[str], told: set[str]) -> None:
    if coded != told:
        raise Untold(f"{what}: without words {sorted(coded - told)}, words for nothing {sorted(told - coded)}")


def _states(table: Table) -> list[str]:
    """In order of appearance, the first one first."""
    sources = [state for state, _ in table]
    return list(dict.fromkeys([*sources, *table.values()]))


def _events(table: Table) -> list[str]:
    return list(dict.fromkeys(event for _, event in table))


def _arrows(table: Table) -> dict[tuple[str, str], list[str]]:
    arrows: dict[tuple[str, str], list[str]] = {}
    for (source, event), after in table.items():
        arrows.setdefault((source, after), []).append(event)
    return arrows


def main(arguments: list[str]) -> int:
    """Write the page, or say whether it is current."""
    drawn = page()
    if "--check" in arguments:
        current = PAGE.is_file() and PAGE.read_text(encoding="utf-8") == drawn
        if not current:
            print("docs/state-machines/README.md is not what the tables say: run scripts/draw_state_machines.py")
        return 0 if current else 1
    PAGE.parent.mkdir(parents=True, exist_ok=True)
    PAGE.write_text(drawn, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
