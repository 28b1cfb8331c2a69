"""G.711 against the rule of the recommendation, written out a second time as plain search over intervals."""

from itertools import pairwise

import numpy as np
import pytest

from duologue.audio.g711 import compress, expand

ALL_SAMPLES = np.arange(-32_768, 32_768).astype(np.int16)
ALL_CODES = bytes(range(256))


def edges(law: str) -> list[int]:
    """The 129 decision values of a law (16-bit scale): steps that double from segment to segment."""
    edge = 0
    result = [edge]
    for segment in range(8):
        step = 8 << segment if law == "pcmu" else 16 << max(segment - 1, 0)
        for index in range(16):
            # The two zeros of mu-law share one step, half of it on each side.
            edge += step // 2 if law == "pcmu" and segment == 0 and index == 0 else step
            result.append(edge)
    return result


def values(law: str) -> list[int]:
    """The 128 output magnitudes: the middle of each interval, and 0 for the first one of mu-law."""
    middles = [(low + high) // 2 for low, high in pairwise(edges(law))]
    return [0, *middles[1:]] if law == "pcmu" else middles


def test_mu_law_values_are_those_of_the_recommendation() -> None:
    decoded = expand("pcmu", ALL_CODES)
    for index, value in enumerate(values("pcmu")):
        assert decoded[0xFF - index] == value
        assert decoded[0x7F - index] == -value


def test_a_law_values_are_those_of_the_recommendation() -> None:
    decoded = expand("pcma", ALL_CODES)
    for index, value in enumerate(values("pcma")):
        assert decoded[(0x80 | index) ^ 0x55] == value
        assert decoded[index ^ 0x55] == -value


@pytest.mark.parametrize(
    ("law", "sample", "code"),
    [
        ("pcmu", 0, 0xFF),
        ("pcmu", 32_767, 0x80),
        ("pcmu", -32_768, 0x00),
        ("pcmu", 1_000, 0xCE),
        ("pcmu", -1_000, 0x4E),
        ("pcma", 0, 0xD5),
        ("pcma", -1, 0x55),
        ("pcma", 32_767, 0xAA),
        ("pcma", -32_768, 0x2A),
        ("pcma", 1_000, 0xFA),
        ("pcma", -1_000, 0x7A),
    ],
)
def test_known_codes(law: str, sample: int, code: int) -> None:
    assert compress(law, np.array([sample], np.int16))[0] == code


@pytest.mark.parametrize("law", ["pcmu", "pcma"])
def test_every_sample_falls_into_the_interval_of_its_code(law: str) -> None:
    codes = compress(law, ALL_SAMPLES)
    index = (0x7F - (codes & 0x7F) if law == "pcmu" else (codes ^ 0x55) & 0x7F).astype(int)
    bounds = np.array(edges(law))
    bounds[-1] = 32_768  # beyond the last decision value everything is the largest code
    magnitude = np.abs(ALL_SAMPLES.astype(int))
    assert ((bounds[index] <= magnitude) & (magnitude <= bounds[index + 1])).all()
    decoded = expand(law, codes.tobytes()).astype(int)
    assert (decoded * ALL_SAMPLES.astype(int) >= -8).all()  # A-law has no zero: 0 becomes 8, -1 becomes -8
    assert (np.diff(decoded) >= 0).all()


@pytest.mark.parametrize("law", ["pcmu", "pcma"])
def test_codes_survive_a_round_trip(law: str) -> None:
    again = compress(law, expand(law, ALL_CODES))
    differing = [code for code in range(256) if again[code] != code]
    # Mu-law has two zeros; only the negative one can't come back.
    assert differing == ([0x7F] if law == "pcmu" else [])
