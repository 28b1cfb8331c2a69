"""The smallest plan that still fails: cut down step by step, keeping each cut that leaves the same rule broken.

Rules kept here: a cut only removes something or sets it back to its default, so that what remains was in the seed's plan;
larger cuts are tried first; the search is bounded by the number of runs.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from typing import Any, Final, TypeVar

import msgspec

from duologue.sim.outcome import Outcome, simulate
from duologue.sim.plan import Choices, Deployment, Link, Person, Plan, Say

MAX_RUNS: Final = 600
_LISTS: Final = ("errands", "replica_faults", "deaths", "leaps", "shutdowns", "strikes")
_KEPT: Final = frozenset({"name", "deployment", "voice", "hands"})
_PARTICULARS: Final = re.compile(r"(?<!\S)(?!d\d\.)(?:\S*\d\S*|(?:ann|bob|cyd|dot|eve)\b:?)|'[^']*'")
_SAID: Final = 5  # violations that count: what follows is mostly what follows from them
_T = TypeVar("_T", bound=msgspec.Struct)


def rules_of(outcome: Outcome) -> frozenset[str]:
    """The rules that a run broke."""
    return frozenset(violation.rule for violation in outcome.violations)


def kinds_of(outcome: Outcome) -> frozenset[str]:
    """Rules and what they say, numbers and names aside: of one rule there are different failures."""
    return frozenset(
        f"{violation.rule}: {_PARTICULARS.sub('#', violation.text)}" for violation in outcome.violations[:_SAID]
    )


def shrink(
    plan: Plan, *, max_runs: int = MAX_RUNS, judge: Callable[[Plan], Outcome] = simulate
) -> tuple[Plan, Outcome, int]:
    """The smallest failing plan found, its outcome, and the number of runs. Raises ``ValueError`` if ``plan`` is fine."""
    outcome = judge(plan)
    wanted = kinds_of(outcome)
    if not wanted:
        raise ValueError(f"seed {plan.seed} does not fail, so there is nothing to shrink")
    runs, again = 1, True
    while again and runs < max_runs:
        again = False
        for candidate in smaller(plan):
            if runs >= max_runs:
                break
            runs += 1
            tried = judge(candidate)
            if kinds_of(tried) & wanted:
                plan, outcome, again = candidate, tried, True
                break
    return plan, outcome, runs


def smaller(plan: Plan) -> Iterator[Plan]:
    """Plans with one thing less, the largest cuts first."""
    if len(plan.people) > 1:
        for index in range(len(plan.people)):
            yield _with(plan, people=_without(plan.people, index))
    yield from _shorter_lists(plan)
    if plan.shuffle:
        yield _with(plan, shuffle=False)
    if plan.witness:
        yield _with(plan, witness="")
    for index, person in enumerate(plan.people):
        for less in _smaller_person(person):
            yield _with(plan, people=(*plan.people[:index], less, *plan.people[index + 1 :]))
    for index, deployment in enumerate(plan.deployments):
        for fewer in _smaller_deployment(deployment):
            yield _with(plan, deployments=(*plan.deployments[:index], fewer, *plan.deployments[index + 1 :]))


def _shorter_lists(plan: Plan) -> Iterator[Plan]:
    for name in _LISTS:
        entries = getattr(plan, name)
        if len(entries) > 1:
            yield _with(plan, **{name: ()})
        for index in range(len(entries)):
            yield _with(plan, **{name: _without(entries, index)})


def _smaller_person(person: Person) -> Iterator[Person]:
    for name in ("hands", "voice", "hooks", "work"):
        entries = getattr(person, name)
        if len(entries) > 3:
            half = len(entries) // 2
            yield _with(person, **{name: entries[:half]})
            yield _with(person, **{name: entries[half:]})
        for index in range(len(entries)):
            yield _with(person, **{name: _without(entries, index)})
    for change in _defaults(person, _KEPT | {"hooks", "work", "choices", "link"}):
        yield _with(person, **change)
    yield from _plainer_person(person)


def _plainer_person(person: Person) -> Iterator[Person]:
    """The same deeds with fewer peculiarities."""
    for name, default in (("choices", Choices()), ("link", Link())):
        part = getattr(person, name)
        if part != default:
            yield _with(person, **{name: default})
            for change in _defaults(part, frozenset()):
                yield _with(person, **{name: _with(part, **change)})
    for index, step in enumerate(person.voice):
        if isinstance(step, Say):
            for change in _defaults(step, frozenset({"loud_ms"})):
                voice = (*person.voice[:index], _with(step, **change), *person.voice[index + 1 :])
                yield _with(person, voice=voice)


def _smaller_deployment(deployment: Deployment) -> Iterator[Deployment]:
    for change in _defaults(deployment, frozenset({"runtime", "limits"})):
        yield _with(deployment, **change)
    for name in ("runtime", "limits"):
        settings: dict[str, Any] = getattr(deployment, name)
        for key in settings:
            yield _with(deployment, **{name: {other: settings[other] for other in settings if other != key}})


def _defaults(value: msgspec.Struct, kept: frozenset[str]) -> Iterator[dict[str, Any]]:
    """One field set back to its default at a time."""
    for field in msgspec.structs.fields(type(value)):
        if field.name in kept or field.required:
            continue
        default = field.default if field.default is not msgspec.NODEFAULT else None
        if field.default is msgspec.NODEFAULT and field.default_factory is not msgspec.NODEFAULT:
            default = field.default_factory()
        if getattr(value, field.name) != default:
            yield {field.name: default}


def _without(entries: tuple[Any, ...], index: int) -> tuple[Any, ...]:
    return (*entries[:index], *entries[index + 1 :])


def _with(value: _T, **changes: Any) -> _T:
    return msgspec.structs.replace(value, **changes)
