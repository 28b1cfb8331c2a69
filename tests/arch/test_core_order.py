"""Within the core, ledgers lie below flows: a ledger knows nothing of what is done with it, so it can be read alone.

Flows that only take an item or a command apart lie above the others; those that call each other back are kept few.
"""

from __future__ import annotations

import ast
from pathlib import Path

CORE = Path(__file__).resolve().parents[2] / "src/duologue/engine/duplex/core"
PACKAGE = "duologue.engine.duplex.core"
LEDGERS = frozenset(
    {
        *(
            "audio",
            "calls",
            "delays",
            "effects",
            "endpoint",
            "fences",
            "gauge",
            "heard",
            "history",
            "invariants",
            "items",
            "lease",
        ),
        *(
            "outbox",
            "overlap",
            "playback",
            "requests",
            "responses",
            "sequel",
            "silence",
            "state",
            "tables",
            "tail",
            "words",
        ),
    }
)


ABOVE = ("barrier", "check", "conversation", "session", "settlement")
"""Flows on top of the others: nothing that they use knows of them."""
MOST_IN_A_CIRCLE = 13
"""So many flows still call each other back. Fewer is better: lower it when one gets out."""


def imports() -> dict[str, set[str]]:
    """What each module of the core imports of the core."""
    modules = {path.stem for path in CORE.glob("*.py")}
    found: dict[str, set[str]] = {}
    for path in sorted(CORE.glob("*.py")):
        names = found.setdefault(path.stem, set())
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.ImportFrom) and node.module == PACKAGE:
                names |= {alias.name for alias in node.names} & modules
            elif isinstance(node, ast.ImportFrom) and node.module and node.module.startswith(f"{PACKAGE}."):
                names.add(node.module.rpartition(".")[2])
    return found


def reached(module: str, known: dict[str, set[str]]) -> set[str]:
    """Everything that ``module`` imports, directly or not."""
    seen: set[str] = set()
    todo = [module]
    while todo:
        fresh = known[todo.pop()] - seen
        seen |= fresh
        todo += fresh
    return seen


def test_ledgers_import_ledgers_alone_and_never_each_other_in_a_circle() -> None:
    known = imports()
    assert known.keys() >= LEDGERS
    for module in sorted(LEDGERS):
        assert known[module] <= LEDGERS, f"{module} imports {sorted(known[module] - LEDGERS)}"
        assert module not in reached(module, known), f"{module} is in a circle of imports"


def test_flows_on_top_are_in_no_circle_and_no_more_than_now_are_in_one() -> None:
    known = imports()
    circular = sorted(module for module in known if module in reached(module, known))
    assert not set(circular) & {*ABOVE, *LEDGERS}
    assert len(circular) <= MOST_IN_A_CIRCLE, f"{len(circular)} modules import each other in a circle: {circular}"


def test_nothing_but_the_session_lies_above_the_flows() -> None:
    known = imports()
    assert sorted(module for module in known if "session" in known[module]) == []
    assert {"answers", "cancel", "turns", "lifecycle"} <= known["session"]
