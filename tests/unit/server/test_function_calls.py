"""Function calls on the wire: their frames, their place among a response's output, and the items that clients send."""

from __future__ import annotations

from typing import Any

import pytest

from duologue.engine.duplex import events
from duologue.engine.duplex.commands import CallOutput, CreateItem, CreateResponse, InputItem
from duologue.outputs import Image, NamedTool, ToolCall, ToolDefinition
from tests.unit.server.driver import Client, World, commands_of
from tests.unit.server.fake_engine import audio, created, done

CALL = events.ItemView(
    item_id="item_c",
    role="assistant",
    status="completed",
    parts=(events.CallPart(call_id="call_1", name="weather", arguments='{"city": "Rome"}'),),
    response_id="resp_1",
)
FRAMES = [
    "conversation.item.added",
    "response.output_item.added",
    "response.function_call_arguments.delta",
    "response.function_call_arguments.done",
    "response.output_item.done",
    "conversation.item.done",
]


def called(*, leads: bool) -> events.FunctionCalled:
    return events.FunctionCalled(response_id="resp_1", epoch=0, item=CALL, previous_item_id="item_u", leads=leads)


def client_of(url: str = "/v1/realtime") -> tuple[World, Client]:
    world = World()
    return world, world.connect(url)


def test_a_call_begins_and_ends_at_once() -> None:
    _, client = client_of()
    client.say(created("resp_1", "item_1"))
    frames = client.say(called(leads=True))
    assert [frame["type"] for frame in frames] == FRAMES
    added = frames[0]
    assert (added["item"]["name"], added["item"]["call_id"], added["previous_item_id"]) == (
        "weather",
        "call_1",
        "item_u",
    )
    assert (added["item"]["status"], added["item"]["arguments"]) == ("in_progress", "")
    assert (frames[2]["delta"], frames[3]["arguments"]) == ('{"city": "Rome"}', '{"city": "Rome"}')
    assert frames[3]["name"] == "weather" and {frame.get("output_index", 0) for frame in frames} == {0}
    assert frames[4]["item"] == {
        "type": "function_call",
        "id": "item_c",
        "object": "realtime.item",
        "status": "completed",
        "call_id": "call_1",
        "name": "weather",
        "arguments": '{"city": "Rome"}',
    }


@pytest.mark.parametrize("leads", [True, False])
def test_every_item_of_a_response_has_a_number_of_its_own(leads: bool) -> None:
    _, client = client_of()
    client.say(created("resp_1", "item_1"))
    if leads:
        client.say(called(leads=True), audio("resp_1", "item_1"))
    else:
        client.say(called(leads=False), audio("resp_1", "item_1"))
    end = done("resp_1", "item_1")
    frames = client.say(events.ResponseDone(**{**fields(end), "calls": (CALL,)}))
    numbers = {
        (frame.get("item") or {"id": frame.get("item_id")})["id"]: frame["output_index"]
        for frame in client.frames
        if "output_index" in frame
    }
    assert numbers == ({"item_c": 0, "item_1": 1} if leads else {"item_1": 0, "item_c": 1})
    output = frames[-1]["response"]["output"]
    assert [item["id"] for item in output] == sorted(numbers, key=lambda item_id: numbers[item_id])


def fields(event: events.ResponseDone) -> dict[str, Any]:
    return {name: getattr(event, name) for name in event.__struct_fields__}


def test_usage_is_null_where_nobody_counted_and_the_count_where_somebody_did() -> None:
    _, client = client_of()
    counted = events.Usage(input_tokens=7, output_tokens=3, cached_tokens=5)
    for number, usage in enumerate((events.Usage(input_audio_ms=500), counted)):
        response_id, item_id = f"resp_{number}", f"item_{number}"
        client.say(created(response_id, item_id))
        client.say(events.ResponseDone(**{**fields(done(response_id, item_id)), "usage": usage}))
    shown = [frame["response"]["usage"] for frame in client.frames if frame["type"] == "response.done"]
    assert shown[0] is None
    assert (shown[1]["total_tokens"], shown[1]["input_token_details"]["cached_tokens"]) == (10, 5)


def test_what_a_client_says_of_calls_becomes_commands() -> None:
    world, client = client_of()
    call = {"type": "function_call", "id": "c", "call_id": "call_1", "name": "weather", "arguments": "{}"}
    client.send("conversation.item.create", item=call)
    client.send(
        "conversation.item.create", item={"type": "function_call_output", "call_id": "call_1", "output": "sunny"}
    )
    client.send(
        "response.create",
        response={
            "tools": [{"type": "function", "name": "clock"}],
            "tool_choice": {"type": "function", "name": "clock"},
            "parallel_tool_calls": False,
        },
    )
    first, second, third = commands_of(world)
    assert isinstance(first, CreateItem) and isinstance(second, CreateItem) and isinstance(third, CreateResponse)
    assert first.item == InputItem(
        item_id="c", role="assistant", call=ToolCall(name="weather", arguments="{}", call_id="call_1")
    )
    assert second.item == InputItem(role="tool", output=CallOutput("call_1", "sunny"))
    options = third.options
    assert (options.tools, options.tool_choice, options.parallel_tool_calls) == (
        (ToolDefinition(name="clock"),),
        NamedTool("clock"),
        False,
    )


@pytest.mark.parametrize(
    ("item", "param"),
    [
        ({"type": "function_call", "call_id": "c"}, "item.name"),
        ({"type": "function_call", "name": "f"}, "item.call_id"),
        ({"type": "function_call_output", "output": "x"}, "item.call_id"),
        ({"type": "mcp_call", "name": "f"}, "item.type"),
    ],
)
def test_an_item_that_lacks_what_makes_it_one_is_refused(item: dict[str, str], param: str) -> None:
    world, client = client_of()
    (frame,) = client.send("conversation.item.create", event_id="e", item=item)
    error = frame["error"]
    assert (error["code"], error["param"], error["event_id"]) == ("invalid_item", param, "e")
    assert not commands_of(world)


def test_a_choice_of_one_function_is_echoed_as_it_is_written() -> None:
    _, client = client_of()
    tools = [{"type": "function", "name": "clock", "parameters": {"type": "object"}}]
    choice = {"type": "function", "name": "clock"}
    (frame,) = client.send(
        "session.update",
        session={"type": "realtime", "tools": tools, "tool_choice": choice, "parallel_tool_calls": False},
    )
    session = frame["session"]
    assert (session["tool_choice"], session["parallel_tool_calls"]) == (choice, False)
    (frame,) = client.send("session.update", session={"type": "realtime", "tool_choice": "required"})
    assert frame["session"]["tool_choice"] == "required" and frame["session"]["tools"][0]["name"] == "clock"


PNG = "data:image/png;base64,iVBORw0KGgo="


def test_pictures_become_part_of_an_item() -> None:
    world, client = client_of()
    content = [{"type": "input_text", "text": "What?"}, {"type": "input_image", "image_url": PNG, "detail": "high"}]
    client.send("conversation.item.create", item={"type": "message", "role": "user", "content": content})
    (command,) = commands_of(world)
    assert command.item == InputItem(role="user", texts=("What?",), images=(Image(PNG, "high"),))


@pytest.mark.parametrize(
    ("kind", "data"),
    [("png", "iVBORw0KGgo="), ("jpeg", "/9j/4A=="), ("gif", "R0lGODlhAQ=="), ("webp", "UklGRgAAAABXRUJQ")],
)
def test_a_picture_is_what_its_url_says(kind: str, data: str) -> None:
    world, client = client_of()
    content = [{"type": "input_image", "image_url": f"data:image/{kind};base64,{data}"}]
    client.send("conversation.item.create", item={"type": "message", "role": "user", "content": content})
    assert len(commands_of(world)) == 1


@pytest.mark.parametrize(
    ("role", "part", "param"),
    [
        ("user", {"image_url": "https://example.org/a.png"}, "item.content[0].image_url"),
        ("user", {}, "item.content[0].image_url"),
        ("user", {"image_url": "data:image/svg+xml;base64,AAAA"}, "item.content[0].image_url"),
        ("user", {"image_url": PNG[:-1]}, "item.content[0].image_url"),
        ("user", {"image_url": PNG[:-3]}, "item.content[0].image_url"),
        ("user", {"image_url": PNG.replace("png", "jpeg")}, "item.content[0].image_url"),
        ("user", {"image_url": "data:image/png;base64,AAAA"}, "item.content[0].image_url"),
        ("user", {"image_url": "data:image/webp;base64,UklGRgAAAABXRUI="}, "item.content[0].image_url"),
        ("user", {"image_url": PNG, "detail": "huge"}, "item.content[0].detail"),
        ("system", {"image_url": PNG}, "item.content[0].type"),
    ],
)
def test_a_picture_that_cannot_be_one_is_refused(role: str, part: dict[str, str], param: str) -> None:
    world, client = client_of()
    content = [{"type": "input_image", **part}]
    (frame,) = client.send("conversation.item.create", item={"type": "message", "role": role, "content": content})
    assert (frame["error"]["code"], frame["error"]["param"]) == ("invalid_item", param)
    assert not commands_of(world)
