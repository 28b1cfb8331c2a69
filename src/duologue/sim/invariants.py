"""The invariants that checkers assert, which checker asserts each, and with what it was shown to notice.

``tests/sim/test_invariants.py`` holds this table against the code: every checker named here says the rule, every proof
named here makes it fire, and healthy runs make none fire. The documentation's table is generated from it.
"""

from __future__ import annotations

from typing import Final, Literal, cast

import msgspec

Seat = Literal["engine", "wire", "counters", "twins", "strikes"]
"""What a checker reads: events and stages at the engine's borders, frames, declared counters, pairs of runs, struck runs."""


class Invariant(msgspec.Struct, frozen=True, kw_only=True):
    """One rule. ``checkers``: modules in :mod:`duologue.sim`. ``seats``: what they read.

    ``switched_off``: the mutation that was noticed; else ``changed``: what was changed in what was seen of a healthy run.
    """

    number: int
    says: str
    checkers: tuple[str, ...]
    seats: tuple[Seat, ...]
    switched_off: str = ""
    changed: str = ""


def _one(number: int, says: str, checkers: str, seats: str, off: str = "", changed: str = "") -> Invariant:
    return Invariant(
        number=number,
        says=says,
        checkers=tuple(checkers.split()),
        seats=cast("tuple[Seat, ...]", tuple(seats.split())),
        switched_off=off,
        changed=changed,
    )


INVARIANTS: Final = (
    _one(
        1,
        "one `response.created` and one `response.done` per id",
        "checkers.order",
        "engine wire",
        changed="an end was taken away",
    ),
    _one(
        2,
        "no content after the done, none before the created; frames in their order",
        "checkers.order",
        "engine wire",
        changed="audio stands behind the end of its response",
    ),
    _one(
        3,
        "no output of an epoch after its end; numbers and epochs do not go back",
        "checkers.order checkers.placement",
        "engine",
        changed="a response is of an epoch that is over",
    ),
    _one(
        4,
        "one session terminal, and it is last",
        "checkers.order",
        "engine wire",
        changed="the terminal was said twice",
    ),
    _one(
        5,
        "after the terminal the slot is free; nobody is refused while there is room",
        "checkers.counters checkers.admission",
        "counters engine",
        off="terminal before the slot is free",
    ),
    _one(
        6,
        "slots and replicas within their limits, and back to zero",
        "checkers.counters",
        "counters",
        off="one slot too many",
    ),
    _one(
        7,
        "reservations go back to zero and never below",
        "checkers.counters",
        "counters",
        off="wanted answer forgotten",
    ),
    _one(
        8,
        "epoch, seq and turn_seq follow their rules; the fence never goes back",
        "checkers.pace",
        "engine",
        off="sequence not restarted",
    ),
    _one(
        9,
        "what stages are fed is what was sent, sample by sample",
        "checkers.feed",
        "engine wire",
        off="prefix off by a sample",
    ),
    _one(
        10,
        "speech is fed, or discarded by a rule",
        "checkers.feed",
        "engine",
        changed="what a stage was fed of a turn is gone",
    ),
    _one(
        11,
        "every table is empty at rest and after the stop",
        "checkers.counters",
        "counters",
        off="running count not lowered",
    ),
    _one(
        12,
        "leases count resumes, one of two wins; operations are answered once",
        "checkers.journal checkers.admission",
        "wire engine",
        changed="an operation was answered twice",
    ),
    _one(13, "a lease ends when it is due, not before", "checkers.journal", "engine", off="idle too short"),
    _one(
        14,
        "the journal has no gap; a resume yields what follows, once",
        "checkers.journal",
        "wire",
        off="replay repeats the last frame",
    ),
    _one(15, "one owner, one notice, old tokens are void", "checkers.journal", "wire", off="any token resumes"),
    _one(
        16,
        "a call is told once, and its results are applied once, in time",
        "checkers.bounds checkers.tools",
        "engine",
        changed="a call was made twice",
    ),
    _one(17, "silence at its period and within its limit", "checkers.pace", "engine", off="silence too often"),
    _one(
        18,
        "what the model is told that it said begins what was said and sent",
        "checkers.history",
        "engine",
        off="unheard text told to the model",
    ),
    _one(
        19,
        "playback cursors within what was sent, forward only",
        "checkers.bounds",
        "engine",
        changed="two pieces of audio changed places",
    ),
    _one(
        20,
        "each command is answered once; nothing waits in an idle session",
        "checkers.answer checkers.counters",
        "wire counters",
        changed="an answer to a heartbeat is gone",
    ),
    _one(
        21,
        "an overflow drops no valid media before it fails",
        "checkers.bounds",
        "engine",
        changed="audio follows the notice of an overflow",
    ),
    _one(
        22,
        "`session.update` is all or nothing, down to the prompts",
        "checkers.answer checkers.history",
        "wire engine",
        off="refused settings adopted",
    ),
    _one(
        23,
        "a witness notices nothing of what befalls the others",
        "twin",
        "twins",
        changed="one more frame was seen alone",
    ),
    _one(
        24,
        "ordinary requests end once, and behave alike with and without sessions",
        "checkers.admission twin",
        "engine twins",
        changed="an ordinary request ended twice",
    ),
    _one(
        25,
        "a cancel at any await leaves nothing open, bound or held, and is answered once",
        "checkers.counters strike",
        "strikes counters",
        off="cancel forgets to abort",
    ),
)


def table() -> str:
    """The table for the documentation."""
    lines = ["| Rule | What it says | Checked in, reading | Seen to fire when |", "|---|---|---|---|"]
    for rule in INVARIANTS:
        checkers = ", ".join(f"`{name.removeprefix('checkers.')}`" for name in rule.checkers)
        proof = f"switched off: {rule.switched_off}" if rule.switched_off else f"changed: {rule.changed}"
        lines.append(f"| B{rule.number} | {rule.says} | {checkers}: {', '.join(rule.seats)} | {proof} |")
    return "\n".join(lines)
