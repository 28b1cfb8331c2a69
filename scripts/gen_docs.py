"""Writes what the documentation takes from the code, between its markers. ``--check`` only says whether it is current.

python scripts/gen_docs.py [--check]
"""

from __future__ import annotations

import sys
import textwrap
from collections.abc import Callable
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))

import draw_state_machines as drawings
import limits as limit_tables
import limits_of_stages as stage_limits

from duologue.config.schema import Group, groups
from duologue.engine.duplex.core.tables import TABLES
from duologue.errors import ERRORS, Fault
from duologue.sim import suspension
from duologue.sim.invariants import table as invariants
from duologue.wire.decoder import DUPLEX_CLIENT_TYPES, GA_CLIENT_TYPES
from duologue.wire.server_events import DuplexServerEvent, GaServerEvent

REPOSITORY = Path(__file__).resolve().parents[1]
PROTOCOL = REPOSITORY / "docs" / "protocol.md"
SESSIONS = REPOSITORY / "docs" / "sessions.md"
LIMITS = REPOSITORY / "docs" / "limits.md"
CONFIGURATION = REPOSITORY / "docs" / "configuration.md"
STAGES = REPOSITORY / "docs" / "stages.md"
SIMULATOR = REPOSITORY / "docs" / "simulator.md"
EXAMPLE = REPOSITORY / "examples" / "two_stage"

_CONSEQUENCE = {
    Fault.CLIENT: "the event is refused",
    Fault.ADMISSION: "no session",
    Fault.SESSION: "the session ends",
    Fault.STAGE: "the response fails",
}


def error_table() -> str:
    """Every code, in the order of the table in the code."""
    lines = [
        "| code | on GA | `error.type` | HTTP | retry | consequence | meaning |",
        "|---|---|---|---|---|---|---|",
    ]
    for code, spec in ERRORS.items():
        ga = f"`{spec.ga_code}`" if spec.ga_code else "same"
        retry = "yes" if spec.retryable else "no"
        lines.append(
            f"| `{code.value}` | {ga} | `{spec.wire_type}` | {spec.http_status} | {retry} "
            f"| {_CONSEQUENCE[spec.fault]} | {spec.summary} |"
        )
    return "\n".join(lines)


def client_events() -> str:
    """Event types that each dialect reads."""
    return _listing(GA_CLIENT_TYPES, DUPLEX_CLIENT_TYPES - GA_CLIENT_TYPES)


def server_events() -> str:
    """Event types that each dialect writes."""
    both = _tags(GaServerEvent)
    return _listing(both, _tags(DuplexServerEvent) - both)


def _tags(union: object) -> frozenset[str]:
    members = union.__args__  # type: ignore[attr-defined]
    return frozenset(str(member.__struct_config__.tag) for member in members)


def _listing(both: frozenset[str], duplex: frozenset[str]) -> str:
    def names(types: frozenset[str]) -> str:
        return ", ".join(f"`{name}`" for name in sorted(types))

    return f"Both dialects: {names(both)}.\n\nThe duplex dialect alone: {names(duplex)}."


def settings() -> str:
    """Every setting of a configuration file, group by group."""
    return "\n\n".join(_group(group) for group in groups() if group.path)


def _group(group: Group) -> str:
    lines = [f"### `{group.path}`", "", textwrap.fill(group.text, 120, break_long_words=False, break_on_hyphens=False)]
    if group.settings:
        lines += ["", "| key | allowed | default |", "|---|---|---|"]
        lines += [
            f"| `{setting.path.rpartition('.')[2]}` | {setting.kind} "
            f"| {setting.default if setting.default == 'required' else f'`{setting.default}`'} |"
            for setting in group.settings
        ]
    return "\n".join(lines)


def example(name: str, language: str) -> Callable[[], str]:
    """A file of the two-stage example, as a block of code."""

    def block() -> str:
        return f"```{language}\n{(EXAMPLE / name).read_text(encoding='utf-8').rstrip()}\n```"

    return block


def drawing(name: str) -> Callable[[], str]:
    """The transitions of one part of a session, drawn, with what its states mean."""

    def block() -> str:
        meanings = "; ".join(f"`{state}`: {words}" for state, words in drawings.STATES[name].items())
        return f"{drawings.diagram(TABLES[name])}\n\n{textwrap.fill(meanings + '.', 120, break_long_words=False)}"

    return block


def limits(table: tuple[limit_tables.Limit, ...]) -> Callable[[], str]:
    """A table of limits."""

    def rows() -> str:
        lines = ["| limit | value | at the limit | shown by |", "|---|---|---|---|"]
        for limit in table:
            lines.append(f"| `{limit.name}` | {_amount(limit)} | {limit.at} | `{limit.metric}` |")
        return "\n".join(lines)

    return rows


def _amount(limit: limit_tables.Limit) -> str:
    number = limit.number()
    if number is None:
        return "none"
    if isinstance(number, int) and number >= 65_536 and number % 1024 == 0:
        size = f"{number // 1024} KiB" if number % 1_048_576 else f"{number // 1_048_576} MiB"
        return size if limit.unit == "bytes" else f"{number:,} {limit.unit}"
    return f"{number:,} {limit.unit}" if isinstance(number, int) else f"{number:g} {limit.unit}"


def await_points() -> str:
    """How many await points each file has, and at how many of them simulated runs can be suspended."""
    counts: dict[str, list[int]] = {}
    for point in suspension.catalogue():
        row = counts.setdefault(point.file, [0, 0])
        row[0] += 1
        row[1] += suspension.elsewhere(point.name) is None
    lines = ["| file | await points | within reach of simulated runs |", "|---|---|---|"]
    lines += [f"| `{file}` | {there} | {reached or 'none'} |" for file, (there, reached) in counts.items()]
    there, reached = (sum(row[column] for row in counts.values()) for column in (0, 1))
    return "\n".join([*lines, f"| all | {there} | {reached} |"])


def not_reached() -> str:
    """At which await points no simulated run is suspended, and why."""
    lines = ["| await points | why not |", "|---|---|"]
    return "\n".join([*lines, *(f"| `{pattern}` | {why} |" for pattern, why in suspension.ELSEWHERE.items())])


PAGES: dict[Path, dict[str, Callable[[], str]]] = {
    PROTOCOL: {"errors": error_table, "client-events": client_events, "server-events": server_events},
    CONFIGURATION: {"settings": settings},
    SESSIONS: {name: drawing(name) for name in TABLES},
    LIMITS: {
        "session": limits(limit_tables.SESSION),
        "connection": limits(limit_tables.CONNECTION),
        "requests": limits(limit_tables.REQUESTS),
        "stages": limits(stage_limits.STAGES),
    },
    SIMULATOR: {"invariants": invariants, "await-points": await_points, "not-reached": not_reached},
    STAGES: {
        "stages.py": example("stages.py", "python"),
        "config.yaml": example("config.yaml", "yaml"),
        "plugin.py": example("plugin.py", "python"),
    },
}


def generated(text: str, page: Path = PROTOCOL) -> str:
    """``text`` of a page with every marked section written anew. Raises ``ValueError`` for a missing marker."""
    for name, write in PAGES[page].items():
        begin, end = f"<!-- generated: {name} -->", f"<!-- end: {name} -->"
        head, found, rest = text.partition(begin)
        _, closed, tail = rest.partition(end)
        if not found or not closed:
            raise ValueError(f"docs/{page.name} has no section {begin} ... {end}")
        text = f"{head}{begin}\n\n{write()}\n\n{end}{tail}"
    return text


def main(arguments: list[str]) -> int:
    """0 if all is current (or was written), 1 if ``--check`` found a stale page."""
    stale = 0
    for page in PAGES:
        text = page.read_text(encoding="utf-8")
        current = generated(text, page)
        if arguments != ["--check"]:
            page.write_text(current, encoding="utf-8")
        elif text != current:
            print(f"docs/{page.name} is not current: run python scripts/gen_docs.py", file=sys.stderr)
            stale = 1
    return stale


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
