"""What a simulated client does when the model asks for a function: answers once, twice, late, never, or again after a resume.

Rules kept here: every result that is sent says which of the client's results it is, so that a checker can tell them apart;
what is sent depends on the client's own dice alone.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Final

from duologue.clock import Runtime
from duologue.sim.plan import ToolStyle
from duologue.wire import client_events as wire
from duologue.wire import server_events as events
from duologue.wire.objects import Item

NAME: Final = "clock"
TIMEOUT_S: Final = 3.0
"""What deployments with tools wait for a result."""

_STYLES: Final[tuple[ToolStyle, ...]] = ("once", "twice", "late", "never", "again")
_TIMES: Final[dict[ToolStyle, tuple[tuple[float, ...], ...]]] = {
    "once": ((0.0,), (0.05,), (0.6,), (2.0,)),
    "twice": ((0.0, 0.0), (0.1, 0.4), (0.5, TIMEOUT_S + 0.5)),
    "late": ((TIMEOUT_S + 0.01,), (TIMEOUT_S + 2.0,), (TIMEOUT_S,)),
    "never": ((),),
    "again": ((0.2, 1.5, 2.8, 4.0), (1.0, 6.0)),  # whatever connection there is by then
}


class Toolbox:
    """The functions of one client. ``send`` sends if there is a connection; ``next_id`` gives ids of whatever is sent to."""

    def __init__(
        self,
        runtime: Runtime,
        style: ToolStyle,
        dice: random.Random,
        send: Callable[[wire.ClientEvent], None],
        next_id: Callable[[], str],
    ) -> None:
        self._runtime = runtime
        self._style = style
        self._dice = dice
        self._send = send
        self._next_id = next_id

    def asked(self, event: events.ArgumentsDone) -> None:
        """The model asks for a function: when, and how often, it is answered is decided here."""
        style = self._dice.choice(_STYLES) if self._style == "mixed" else self._style
        if self._style == "off":
            return
        answers = self._dice.random() < 0.7
        for number, delay_s in enumerate(self._dice.choice(_TIMES[style]), 1):
            self._runtime.call_at(self._runtime.now() + delay_s, self._answer, event.call_id, number, answers)

    def _answer(self, call_id: str, number: int, answers: bool) -> None:
        result = Item(type="function_call_output", call_id=call_id, output=f"result {number} of {call_id}")
        self._send(wire.ItemCreate(event_id=self._next_id(), item=result))
        if answers and number == 1:
            self._send(wire.ResponseCreate(event_id=self._next_id()))
