"""Every invariant has a checker, every checker has been seen to fire, and none fires in a healthy run."""

from __future__ import annotations

import importlib
import inspect
from contextlib import nullcontext

import pytest

from duologue.sim.checkers import judge
from duologue.sim.invariants import INVARIANTS
from duologue.sim.mutation import applied
from duologue.sim.mutations import MUTATIONS
from duologue.sim.outcome import evidence_of, live, simulate
from duologue.sim.strike import live as struck
from duologue.sim.trace import Entry
from duologue.sim.twin import alone, compare
from tests.sim.scenes import PROOFS, TWINS, Proof

OFF = {mutation.name: mutation for mutation in MUTATIONS}


def _rules(proof: Proof) -> set[str]:
    with applied(OFF[proof.off]) if proof.off else nullcontext():
        if proof.strikes:
            outcomes = [struck(proof.scene, strike)[0] for strike in proof.strikes]
            return {found.rule for outcome in outcomes for found in outcome.violations}
        world, violations = live(proof.scene)
    assert world is not None
    if proof.tamper is not None:
        proof.tamper(world)
    return {found.rule for found in [*violations, *judge(evidence_of(world))]}


def test_the_table_holds_every_invariant_and_its_checkers_say_it() -> None:
    assert [invariant.number for invariant in INVARIANTS] == list(range(1, 26))
    for invariant in INVARIANTS:
        for module in invariant.checkers:
            source = inspect.getsource(importlib.import_module(f"duologue.sim.{module}"))
            assert f'"B{invariant.number}"' in source, (invariant.number, module)


def test_every_invariant_has_a_proof_that_the_table_tells() -> None:
    assert sorted([*PROOFS, 23]) == [invariant.number for invariant in INVARIANTS]
    for invariant in INVARIANTS:
        proof = PROOFS.get(invariant.number)
        off = proof.off if proof is not None else ""
        assert invariant.switched_off == off, invariant.number
        assert bool(invariant.changed) != bool(off), invariant.number


@pytest.mark.parametrize("number", PROOFS)
def test_its_checker_fires(number: int) -> None:
    assert f"B{number}" in _rules(PROOFS[number])


def test_every_scene_is_healthy_as_it_is() -> None:
    plans = {id(proof.scene): proof.scene for proof in PROOFS.values()}
    for plan in (*plans.values(), TWINS):
        assert simulate(plan).violations == ()
    for proof in PROOFS.values():
        for strike in proof.strikes:
            outcome, watch = struck(proof.scene, strike)
            assert outcome.violations == () and watch is not None and watch.struck


def test_a_witness_that_notices_something_is_noticed() -> None:
    together, _ = live(TWINS)
    twin, _ = live(alone(TWINS))
    assert together is not None and twin is not None
    assert compare(TWINS, together.trace, twin.trace) == []
    twin.trace.entries.append(Entry(9.0, "ann", "in", b"{}"))
    assert [found.rule for found in compare(TWINS, together.trace, twin.trace)] == ["B23"]
