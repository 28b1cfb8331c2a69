"""The report on a terminal.

Rule kept here: everything shown is in the report; nothing is computed or judged here.
"""

from __future__ import annotations

from pathlib import Path

from rich.console import Console, Group, RenderableType
from rich.table import Table
from rich.text import Text

from duologue.demo.report import Measure, Report, TurnReport


def show_report(report: Report, out_dir: Path, console: Console) -> None:
    """Print what was said, the figures, and what failed."""
    console.print(_dialogue(report))
    console.print(_figures(report))
    if report.kill is not None:
        console.print(_kill(report))
    for failure in report.failures:
        console.print(Text(f"FAILED {failure.code}: {failure.message}", style="bold red"))
    console.print(f"files: {out_dir}/conversation.wav, events.jsonl, report.json, server.log", highlight=False)
    console.print(
        Text("the demo passed", style="bold green") if report.ok else Text("the demo failed", style="bold red")
    )


def _dialogue(report: Report) -> RenderableType:
    lines: list[Text] = []
    for turn in report.turns:
        lines.append(Text(f"{turn.turn}  you       {turn.user_text_heard or '(nothing was understood)'}", style="cyan"))
        lines.append(_answer(turn))
    return Group(*lines)


def _answer(turn: TurnReport) -> Text:
    line = Text("   assistant ", style="magenta")
    if not turn.assistant_text:
        return line.append("(no answer)", style="red")
    if not turn.interrupted:
        return line.append(turn.assistant_text)
    heard = turn.assistant_text_heard
    line.append(heard)
    unheard = turn.assistant_text[len(heard) :] if turn.assistant_text.startswith(heard) else ""
    shown = unheard if len(unheard) <= 80 else unheard[:77] + "..."
    return line.append(" | interrupted" if not shown else f" |{shown}", style="dim strike" if shown else "dim")


def _figures(report: Report) -> Table:
    table = Table(box=None, pad_edge=False)
    for name in ("", "measured", "aim", ""):
        table.add_column(name, justify="left" if not name else "right")
    for measure in report.measures:
        table.add_row(measure.name, _value(measure), _aim(measure), _mark(measure))
    table.add_row("CPU of the server", f"{report.cpu_seconds:.1f} s", "", "")
    table.add_row("memory of the server, at most", f"{report.rss_mb:.0f} MB", "", "")
    table.add_row("length of the conversation", f"{report.conversation_s:.0f} s", "", "")
    return table


def _value(measure: Measure) -> str:
    return "not measured" if measure.value is None else _number(measure.value, measure.unit)


def _aim(measure: Measure) -> str:
    return f"<= {_number(measure.limit, measure.unit)}"


def _number(value: float, unit: str) -> str:
    return f"{value:.0f} {unit}" if unit else f"{100 * value:.1f} %"


def _mark(measure: Measure) -> Text:
    return Text("ok", style="green") if measure.met else Text("missed", style="yellow")


def _kill(report: Report) -> Text:
    kill = report.kill
    assert kill is not None
    back = "never" if kill.worker_back_s is None else f"after {kill.worker_back_s:.1f} s"
    return Text(
        f"killed {kill.killed_process} ({kill.killed_pid}); session {kill.terminal or 'lives on'}, "
        f"answer {kill.response_status or 'none'} [{kill.error_code or 'no code'}]; worker back {back}; "
        f"new session {'answered' if kill.new_session_answered else 'not answered'}"
    )
