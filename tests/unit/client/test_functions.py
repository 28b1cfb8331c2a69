"""Functions of the client: each call is run once, and the model goes on once all results are there."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Annotated, Any

import msgspec
import pytest

from duologue.client import ClientSession, Functions
from duologue.client.functions import Answer
from duologue.sim.loop import virtual
from tests.unit.client.scripted import (
    ScriptedServer,
    ScriptedSocket,
    accept,
    background,
    closing,
    joined,
    response_object,
)

CREATE, RESULT = "response.create", "conversation.item.create"


def calls(
    socket: ScriptedSocket, response_id: str, *call_ids: str, name: str = "add", arguments: str = '{"a": 1}'
) -> None:
    socket.tell("response.created", response=response_object(response_id))
    for call_id in call_ids:
        where = {"response_id": response_id, "item_id": f"item_{call_id}", "output_index": 0, "call_id": call_id}
        socket.tell("response.function_call_arguments.done", **where, name=name, arguments=arguments)


def results(socket: ScriptedSocket) -> dict[str, str]:
    return {event["item"]["call_id"]: event["item"]["output"] for event in socket.sent if event["type"] == RESULT}


class Arguments(msgspec.Struct):
    a: int = 0


class Sum(msgspec.Struct):
    sum: int


class Desk:
    """A function that answers when it is told to."""

    def __init__(self) -> None:
        self.asked: list[Arguments] = []
        self.open = asyncio.Event()
        self.cancelled = 0

    async def add(self, arguments: Arguments) -> Answer:
        self.asked.append(arguments)
        try:
            await self.open.wait()
        except asyncio.CancelledError:
            self.cancelled += 1
            raise
        return Sum(sum=3)


def desk() -> tuple[Desk, Functions]:
    one = Desk()
    functions = Functions()
    functions.add(one.add, Arguments, description="Adds.")
    return one, functions


@asynccontextmanager
async def meeting(
    functions: Functions, server: ScriptedServer | None = None
) -> AsyncIterator[tuple[ClientSession, ScriptedSocket]]:
    """A session with these functions, and the server's side of its first connection."""
    server = server or ScriptedServer()
    task = background(accept(server))
    async with joined(server, functions=functions) as session:
        yield session, await task


@virtual
async def test_the_model_goes_on_when_every_result_is_there_and_the_response_is_over() -> None:
    one, functions = desk()
    async with meeting(functions) as (session, socket):
        (tool,) = socket.sent[0]["session"]["tools"]
        assert (tool["type"], tool["name"], tool["description"]) == ("function", "add", "Adds.")
        assert tool["parameters"]["properties"] == {"a": {"type": "integer", "default": 0}}
        calls(socket, "r", "c1", "c2")
        await asyncio.sleep(1.0)
        assert one.asked == [Arguments(a=1), Arguments(a=1)] and not results(socket)
        one.open.set()
        await socket.until(RESULT, 2)
        assert results(socket) == {"c1": '{"sum":3}', "c2": '{"sum":3}'}
        await asyncio.sleep(1.0)
        assert CREATE not in socket.types()  # the response still speaks
        socket.tell("response.done", response=response_object("r", "completed"))
        await socket.until(CREATE)
        await asyncio.sleep(1.0)
        assert socket.types().count(CREATE) == 1 and session.ended is None
        await closing(socket)


@pytest.mark.parametrize("status", ["completed", "incomplete"])
@virtual
async def test_a_response_that_is_over_waits_for_its_function(status: str) -> None:
    one, functions = desk()
    async with meeting(functions) as (_, socket):
        calls(socket, "r", "c1")
        socket.tell("response.done", response=response_object("r", status))
        await asyncio.sleep(5.0)
        assert CREATE not in socket.types()
        one.open.set()
        await socket.until(CREATE)
        assert socket.types()[-2:] == [RESULT, CREATE]
        await closing(socket)


@virtual
async def test_a_response_that_is_stopped_stops_its_functions() -> None:
    one, functions = desk()
    async with meeting(functions) as (_, socket):
        calls(socket, "r", "c1")
        await asyncio.sleep(0.1)
        socket.tell("response.done", response=response_object("r", "cancelled"))
        await asyncio.sleep(0.1)
        one.open.set()
        await asyncio.sleep(1.0)
        assert one.cancelled == 1 and not results(socket) and CREATE not in socket.types()
        await closing(socket)


@virtual
async def test_a_function_runs_once_and_its_result_survives_a_lost_connection() -> None:
    one, functions = desk()
    server = ScriptedServer()
    async with meeting(functions, server) as (_, first):
        calls(first, "r", "c1")
        first.tell("response.done", response=response_object("r", "completed"))
        await asyncio.sleep(0.1)
        first.drop()
        second = await server.socket(1)
        await second.until("session.resume")
        one.open.set()
        second.tell(
            "session.resumed", session={"type": "realtime"}, resume_token="t2", generation=1, last_server_event_seq=0
        )
        await second.until(CREATE)
        assert len(one.asked) == 1 and results(second) == {"c1": '{"sum":3}'}
        await closing(second)


@virtual
async def test_leaving_stops_what_runs() -> None:
    one, functions = desk()
    async with meeting(functions) as (_, socket):
        calls(socket, "r", "c1")
        await asyncio.sleep(0.1)
        await closing(socket)
    assert one.cancelled == 1 and not results(socket)


@virtual
async def test_a_function_that_is_not_ours_is_left_to_the_application() -> None:
    _, functions = desk()
    async with meeting(functions) as (session, socket):
        calls(socket, "r", "c1", name="other")
        socket.tell("response.done", response=response_object("r", "completed"))
        await asyncio.sleep(1.0)
        assert not results(socket) and CREATE not in socket.types()
        await session.answer_call("c1", "mine")
        await socket.until(RESULT)
        assert results(socket) == {"c1": "mine"}
        await closing(socket)


def plain(arguments: Arguments) -> Answer:
    del arguments
    return "text"


def nothing(arguments: Arguments) -> Answer:
    del arguments
    return None


def broken(arguments: Arguments) -> Answer:
    raise ValueError(f"secret {arguments}")


@pytest.mark.parametrize(
    ("function", "arguments", "said"),
    [
        (plain, "{}", "text"),
        (plain, "", "text"),
        (nothing, "{}", ""),
        (broken, "{}", "The function failed."),
        (plain, "[1]", "The arguments do not fit: Expected `object`, got `array`."),
        (plain, '{"a": "one"}', "The arguments do not fit: Expected `int`, got `str` - at `$.a`."),
        (plain, "{", "The arguments do not fit: Input data was truncated."),
    ],
)
def test_what_the_model_is_told(function: Any, arguments: str, said: str) -> None:
    functions = Functions()
    functions.add(function, Arguments, name="f")
    assert asyncio.run(functions.call("f", arguments)) == said


def test_a_name_is_given_once() -> None:
    functions = Functions()
    functions.add(plain, Arguments)
    with pytest.raises(ValueError, match="'plain'"):
        functions.add(plain, Arguments)


class Leg(msgspec.Struct):
    """One part of a journey."""

    to: str
    nights: Annotated[int, msgspec.Meta(ge=0, description="how long to stay")] = 1


class Journey(msgspec.Struct):
    legs: list[Leg]


def test_a_model_is_told_the_schema_of_what_a_function_takes() -> None:
    functions = Functions()
    functions.add(plain, Arguments)
    functions.add(lambda journey: journey.legs[0].to, Journey, name="travel", description="Books.")
    simple, nested = functions.tools()
    kept = msgspec.json.decode(simple.parameters)
    assert kept["type"] == "object" and "$defs" not in kept
    schema = msgspec.json.decode(nested.parameters)
    assert (nested.name, nested.description, schema["type"]) == ("travel", "Books.", "object")
    assert schema["properties"]["legs"]["items"] == {"$ref": "#/$defs/Leg"} and schema["required"] == ["legs"]
    leg = schema["$defs"]["Leg"]
    assert leg["description"] == "One part of a journey."
    assert leg["properties"]["nights"]["description"] == "how long to stay"
    assert asyncio.run(functions.call("travel", '{"legs": [{"to": "Rome"}]}')) == "Rome"
