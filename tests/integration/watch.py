"""Engines behind servers of the integration tests, watched at their borders and judged by the simulator's checkers.

Rule kept here: nothing is judged by how long it took; these engines run in real time.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from duologue.clock import Runtime
from duologue.engine.duplex_orchestrator import DuplexOrchestrator
from duologue.engine.messages import EngineQueueMessage
from duologue.server import engine as port
from duologue.sim.border import Border
from duologue.sim.checkers import engine_evidence
from duologue.sim.checkers.bounds import check as bounds
from duologue.sim.checkers.counters import check as counters
from duologue.sim.checkers.order import check as order
from duologue.sim.observation import Observations
from duologue.sim.trace import Trace

_TIMELESS = (order, bounds, counters)


class Watched:
    """One engine, from the moment at which it was attached to its server."""

    def __init__(self, runtime: Runtime, orchestrator: DuplexOrchestrator) -> None:
        self.border = Border(Observations(Trace(runtime.now), ""))
        self.border.watch(orchestrator)
        self._orchestrator = orchestrator

    def found(self) -> list[str]:
        """What it did wrong. One that a test made to fail owes its sessions no orderly end."""
        engine = self._orchestrator
        stopped = engine.alive and not engine.session_manager.health().open
        evidence = engine_evidence(
            self.border.seen, engine.session_manager.runtime_config, engine.plugin.capabilities, whole=stopped
        )
        wrong = [violation for check in _TIMELESS for violation in check(evidence)]
        return [f"{violation.rule}: {violation.text}" for violation in wrong]


@contextmanager
def watching(patch: pytest.MonkeyPatch) -> Iterator[list[Watched]]:
    """Every engine that is attached to a server meanwhile."""
    watched: list[Watched] = []
    attach = port.EngineFront.attach

    def attaching(front: port.EngineFront, orchestrator: port.Orchestrator) -> None:
        if isinstance(orchestrator, DuplexOrchestrator):
            one = Watched(front._runtime, orchestrator)
            watched.append(one)
            take = front.outputs._take

            def leaving(message: EngineQueueMessage) -> None:
                one.border.left(message)
                take(message)

            front.outputs._take = leaving
        attach(front, orchestrator)

    patch.setattr(port.EngineFront, "attach", attaching)
    yield watched
