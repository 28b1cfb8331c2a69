"""Rule machines over every item, for models that keep their place and models that do not; and proof that they bite."""

from __future__ import annotations

from copy import copy
from typing import get_args

import pytest
from hypothesis import Phase, settings
from hypothesis.stateful import run_state_machine_as_test

from duologue.engine.duplex import commands as c
from duologue.engine.duplex.core.fences import Fences
from duologue.engine.duplex.core.invariants import InvariantViolation
from duologue.engine.duplex.core.items import Item
from duologue.engine.duplex.core.lease import Lease
from duologue.engine.duplex.core.outbox import Outbox
from duologue.engine.duplex.core.requests import RequestTable, StageRequestRecord
from duologue.engine.duplex.core.tail import AppendTail
from tests.unit.core.machine import Life, ResidentLife, seen

LIVES = settings(max_examples=60, stateful_step_count=40)
HUNT = settings(LIVES, max_examples=200, phases=[Phase.generate], report_multiple_bugs=False)


def test_every_life_keeps_every_rule() -> None:
    seen().clear()
    for machine in (Life, ResidentLife):
        run_state_machine_as_test(machine, settings=LIVES)
    kinds = {*get_args(Item), *get_args(c.DuplexCommand)}
    assert kinds - set(seen()) == set(), "no rule makes these"


class _Undead(RequestTable):
    """Forgets no request."""

    graves: dict[str, StageRequestRecord] = {}

    def get(self, request_id: str) -> StageRequestRecord | None:
        return self.records.get(request_id) or self.graves.get(request_id)

    def remove(self, request_id: str) -> StageRequestRecord | None:
        record = self.records.pop(request_id, None)
        if record is not None:
            self.graves[request_id] = record
        return record


def _pushes_in(self: AppendTail, append: object) -> None:
    self.queue.appendleft(append)  # type: ignore[arg-type]


def _resumes_any(self: Lease, now: float, control_id: str, expected: int) -> bool:
    self.generation += 1
    return True


def _says_twice(self: Outbox, entry: object) -> None:
    self.queue += (entry, copy(entry))  # type: ignore[arg-type]


SAFEGUARDS: dict[str, tuple[object, str, object, type[Life]]] = {
    "what a request that ended says is dropped": (RequestTable, "get", _Undead.get, Life),
    "what was queued first is submitted first": (AppendTail, "enqueue", _pushes_in, ResidentLife),
    "sequence numbers count what was accepted": (Fences, "commit", lambda self, fence: None, Life),
    "a resume is a compare and swap": (Lease, "resume", _resumes_any, Life),
    "what is said is said once": (Outbox, "push", _says_twice, Life),
}


@pytest.mark.parametrize("name", SAFEGUARDS)
def test_a_safeguard_that_is_off_is_missed(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    owner, attribute, instead, machine = SAFEGUARDS[name]
    if owner is RequestTable:
        monkeypatch.setattr(_Undead, "graves", {})
        monkeypatch.setattr(RequestTable, "graves", _Undead.graves, raising=False)
        monkeypatch.setattr(RequestTable, "remove", _Undead.remove)
    monkeypatch.setattr(owner, attribute, instead)
    with pytest.raises((AssertionError, InvariantViolation)):
        run_state_machine_as_test(machine, settings=HUNT)
