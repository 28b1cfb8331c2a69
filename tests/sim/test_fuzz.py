"""The fuzzer finds what it looks for; and a short run over every decoder finds nothing."""

from __future__ import annotations

import pytest

from duologue.sim import fuzz
from duologue.sim.fuzz import DECODERS, TARGETS, Documented, Fuzzer, Target

RUNS = 1_500


@pytest.mark.parametrize("target", TARGETS)
def test_nothing_but_the_documented_errors_comes_out(target: Target) -> None:
    report = Fuzzer(target).run(runs=RUNS)
    assert report.crashes == []
    assert report.runs == RUNS
    assert report.corpus > 20, "nothing new was reached: the guidance is broken"


@pytest.mark.parametrize("value", [b"\xd4\x01b", b"\xcb\x7f\xf8" + bytes(6)], ids=["extension", "nan"])
def test_values_without_an_equal_are_not_taken_for_a_difference(value: bytes) -> None:
    message = b"\x94\x04\x01\x81\xa1a" + value + b"\xc0"  # Returned(1, {"a": value})
    assert DECODERS["engine"](len(message).to_bytes(4, "big") + message) is not None


def test_a_run_is_decided_by_its_seed() -> None:
    fuzzers = [Fuzzer("worker", seed) for seed in (1, 1, 2)]
    for fuzzer in fuzzers:
        fuzzer.run(runs=400)
    one, other, third = (fuzzer.corpus for fuzzer in fuzzers)
    assert one == other != third


def test_what_is_reached_step_by_step_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two bytes that a blind search would need 65,536 inputs for, on average."""

    def decode(data: bytes) -> object:
        for count, byte in enumerate(b"PC"):
            if len(data) <= count or data[count] != byte:
                raise Documented("abcd"[count])
        raise KeyError("found")

    monkeypatch.setitem(fuzz.DECODERS, "worker", decode)
    monkeypatch.setitem(fuzz.SEEDS, "worker", lambda: [b"????"])
    fuzzer = Fuzzer("worker")
    while not fuzzer.report.crashes:
        assert fuzzer.run(runs=500).runs < 20_000
    assert fuzzer.report.crashes[0].data.startswith(b"PC")
    assert "found" in fuzzer.report.crashes[0].error
