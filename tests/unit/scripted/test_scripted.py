"""The scripted models are deterministic, and their audio carries what it should."""

from __future__ import annotations

import pytest

from duologue.audio.resample import Resampler
from duologue.models.scripted.script import Script, ScriptedFault
from duologue.models.scripted.sound import LEVELS, heard, silence, tone


@pytest.mark.parametrize("level", range(LEVELS))
@pytest.mark.parametrize("rate_hz", [8_000, 16_000, 24_000, 48_000])
def test_a_level_survives_a_change_of_rate(level: int, rate_hz: int) -> None:
    spoken = silence(200, rate_hz=rate_hz) + tone(400, rate_hz=rate_hz, level=level) + silence(200, rate_hz=rate_hz)
    if rate_hz != 16_000:
        resampler = Resampler(rate_hz, 16_000)
        spoken = resampler.feed(spoken) + resampler.flush()
    found = heard(spoken, 16_000)
    assert found is not None
    assert found[0] == level
    assert found[1] == pytest.approx(400, abs=60)


def test_nothing_is_heard_in_silence() -> None:
    assert heard(silence(1_000, rate_hz=16_000), 16_000) is None
    assert heard(b"", 16_000) is None


def test_a_level_out_of_range_is_refused() -> None:
    with pytest.raises(ValueError, match="between 0 and 11"):
        tone(10, rate_hz=16_000, level=12)


def test_a_fault_acts_where_and_when_the_script_says() -> None:
    script = Script(faults=(ScriptedFault(stage_id=1, kind="hang", when="bad"),))
    assert script.fault(1, "a bad day") == "hang"
    assert script.fault(0, "a bad day") is None
    assert script.fault(1, "a good day") is None
