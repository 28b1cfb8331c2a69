"""Decisions about the engine: what crosses its border is plain data, what runs where, whose fault an error is."""

from __future__ import annotations

import asyncio
import errno
import os
from collections.abc import Callable, Iterator
from types import ModuleType
from typing import Any

import msgspec
import pytest

from duologue.engine.duplex import commands, events, messages, results
from duologue.engine.duplex.commands import AppendAudio
from duologue.engine.duplex.events import SpeechStarted
from duologue.engine.duplex.session.detection import BatchedDetection
from duologue.engine.stages.arena import create_memory
from duologue.errors import ERRORS, ErrorCode, Fault
from duologue.models.scripted import tone
from duologue.server.projection import DUPLEX_STYLE, GA_STYLE, Style, error_frame
from duologue.sim.loop import VirtualRuntime, virtual
from tests.unit.session.desk import desk
from tests.unit.session.test_control import RATE_HZ, VAD, Loudness

CONTRACT = (commands, events, messages, results)


def structs(module: ModuleType) -> list[type[msgspec.Struct]]:
    return [
        thing
        for thing in vars(module).values()
        if isinstance(thing, type) and issubclass(thing, msgspec.Struct) and thing.__module__ == module.__name__
    ]


def foreign(type_info: Any, path: str, seen: set[type]) -> Iterator[str]:
    """Where a type holds something that could not leave the process."""
    kind = type(type_info).__name__
    if kind in ("CustomType", "AnyType", "RawType"):
        yield f"{path}: {kind}"
    if kind == "StructType" and type_info.cls not in seen:
        seen.add(type_info.cls)
        for field in type_info.fields:
            yield from foreign(field.type, f"{path}.{field.name}", seen)
    for name in ("item_type", "key_type", "value_type"):
        if getattr(type_info, name, None) is not None:
            yield from foreign(getattr(type_info, name), path, seen)
    for name in ("types", "item_types"):
        for one in getattr(type_info, name, ()):
            yield from foreign(one, path, seen)


@pytest.mark.parametrize("module", CONTRACT, ids=lambda module: module.__name__.rpartition(".")[2])
def test_decision_23_nothing_in_a_sessions_contract_is_an_object_of_the_process(module: ModuleType) -> None:
    found = structs(module)
    assert len(found) > 5
    for struct in found:
        assert list(foreign(msgspec.inspect.type_info(struct), struct.__name__, set())) == []
        assert struct.__struct_config__.frozen or issubclass(struct, BaseException), struct


def test_decision_23_an_object_of_the_process_would_be_found() -> None:
    held = msgspec.defstruct("Held", [("modules", dict[str, list[ModuleType]])])
    message = msgspec.defstruct("Message", [("held", held | None)])  # type: ignore[operator]
    assert list(foreign(msgspec.inspect.type_info(message), "Message", set())) == ["Message.held.modules: CustomType"]


@virtual
async def test_decision_24_an_ordinary_append_takes_no_detour(runtime: VirtualRuntime) -> None:
    """Decoding, resampling and the step are done at once on the loop; inference alone leaves it, once for the batch."""
    offloaded: list[str] = []
    offload = runtime.offload

    async def watched(fn: Callable[..., Any], *args: Any) -> Any:
        offloaded.append(getattr(fn, "__qualname__", str(fn)))
        return await offload(fn, *args)

    runtime.offload = watched  # type: ignore[method-assign, assignment]
    scorer = Loudness()
    there = desk(runtime, config=VAD, detection=BatchedDetection(runtime, scorer))  # type: ignore[arg-type]
    for _ in range(20):
        there.runner.submit(AppendAudio(audio=tone(32, rate_hz=RATE_HZ, level=11)))
        await asyncio.sleep(0.032)
    assert len(there.of(SpeechStarted)) == 1
    assert set(offloaded) == {"Loudness.score"} and len(offloaded) == len(scorer.batches) <= 20


def test_decision_25_the_memory_that_workers_share_has_no_name() -> None:
    descriptor = create_memory()
    try:
        assert os.fstat(descriptor).st_nlink == 0, "nothing is left of it when the last of its processes is gone"
    finally:
        os.close(descriptor)
    with pytest.raises(OSError) as caught:
        os.fstat(descriptor)
    assert caught.value.errno == errno.EBADF


@pytest.mark.parametrize("style", [GA_STYLE, DUPLEX_STYLE], ids=lambda style: style.dialect)
@pytest.mark.parametrize("code", ErrorCode)
def test_decision_26_a_servers_fault_is_never_told_as_the_clients(code: ErrorCode, style: Style) -> None:
    spec = ERRORS[code]
    error = error_frame(style, code, "").error
    if spec.fault in (Fault.SESSION, Fault.STAGE) and code is not ErrorCode.OUTPUT_BACKPRESSURE:  # it does not read
        assert error.type == "server_error" and spec.http_status >= 500
    if spec.http_status >= 500:  # a command may be refused, and the session live, for want of something of the server's
        assert error.type == "server_error"
    assert error.code == (spec.ga_code if style is GA_STYLE and spec.ga_code else code.value)
