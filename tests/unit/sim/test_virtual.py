"""The decorator that runs a test in virtual time, with everything else that a test may be."""

import asyncio

import pytest
from hypothesis import given
from hypothesis import strategies as st

from duologue.clock import Runtime
from duologue.sim.loop import START_S, VirtualRuntime, virtual


@pytest.fixture
def number() -> int:
    return 41


@virtual(seed=5, limit_s=3)
async def test_the_decorator_passes_fixtures_and_options(number: int, runtime: VirtualRuntime) -> None:
    assert number == 41
    assert runtime.seed == 5
    await asyncio.sleep(2)


@virtual
async def test_the_decorator_needs_no_runtime() -> None:
    await asyncio.sleep(1)


class TestMethods:
    @virtual
    async def test_a_method(self, runtime: Runtime) -> None:
        assert isinstance(self, TestMethods)
        assert runtime.now() == START_S

    @pytest.mark.parametrize("value", [1, 2])
    @virtual
    async def test_parameters(self, runtime: Runtime, value: int) -> None:
        await asyncio.sleep(value)
        assert runtime.now() == START_S + value


@given(delay=st.integers(0, 100))
@virtual
async def test_hypothesis_drives_it(runtime: VirtualRuntime, delay: int) -> None:
    await asyncio.sleep(delay)
    assert runtime.now() == START_S + delay


def test_the_decorator_lets_failures_through() -> None:
    @virtual
    async def failing(runtime: VirtualRuntime) -> None:
        await asyncio.sleep(1)
        raise AssertionError("on purpose")

    with pytest.raises(AssertionError, match="on purpose"):
        failing()
