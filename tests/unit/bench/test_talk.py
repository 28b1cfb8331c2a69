"""The benchmark of talk measures talk that is answered, and as much of it as it says."""

import pytest

from duologue.bench import talk
from duologue.sim.outcome import live
from duologue.sim.plan import Family
from duologue.wire.server_events import ResponseDone


@pytest.mark.parametrize("family", talk.FAMILIES)
def test_every_sentence_is_part_of_the_minutes_that_are_counted(family: Family) -> None:
    short, long = (talk.measure(family, 1, sentences).session_min for sentences in (2, 4))
    assert long - short == pytest.approx(2 * (talk.LOUD_MS + talk.QUIET_MS) / 60_000, abs=0.01)


def test_every_sentence_is_answered() -> None:
    world, violations = live(talk.plan("ephemeral", 1, 3))
    assert world is not None
    assert not violations
    heard = world.talkers[0].conversations[0].heard
    assert sum(isinstance(entry.event, ResponseDone) for entry in heard) == 3
