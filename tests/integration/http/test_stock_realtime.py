"""OpenAI's own realtime client against the server, unmodified, with the scripted model: a function is called and answered."""

from __future__ import annotations

import json
from typing import Any

from openai import AsyncOpenAI

from tests.integration.http.host import host, on_loop, stock_client

FAST = {"recognise_s": 0.0, "think_s": 0.0, "speak_s": 0.0, "sentence_ms": 200, "sentences": 1}
CALL = {"when": "weather", "name": "weather", "arguments": '{"city": "Rome"}', "says": 1}
TOOL = {
    "type": "function",
    "name": "weather",
    "description": "The weather somewhere.",
    "parameters": {"type": "object", "properties": {"city": {"type": "string"}}},
}


async def until(connection: Any, *kinds: str) -> list[Any]:
    """Events up to the first of one of these types, or an error."""
    seen: list[Any] = []
    async for event in connection:
        seen.append(event)
        if event.type in kinds or event.type == "error":
            return seen
    raise AssertionError([event.type for event in seen])


@on_loop
async def test_a_function_is_called_and_its_result_is_answered() -> None:
    async with host(calls=[CALL], **FAST) as place, stock_client(place) as client:
        await _round_trip(client)


async def _round_trip(client: AsyncOpenAI) -> None:
    async with client.realtime.connect(model="scripted") as connection:
        await connection.session.update(
            session={"type": "realtime", "tools": [TOOL], "tool_choice": "auto", "instructions": "Help."}  # type: ignore[list-item]
        )
        updated = (await until(connection, "session.updated"))[-1]
        assert updated.session.tools[0].name == "weather"
        await connection.conversation.item.create(
            item={"type": "message", "role": "user", "content": [{"type": "input_text", "text": "weather?"}]}
        )
        await connection.response.create()
        seen = await until(connection, "response.done")
        (asked,) = [event for event in seen if event.type == "response.function_call_arguments.done"]
        assert (asked.name, json.loads(asked.arguments)) == ("weather", {"city": "Rome"})
        deltas = [event.delta for event in seen if event.type == "response.function_call_arguments.delta"]
        assert "".join(deltas) == asked.arguments
        done = seen[-1].response
        assert sorted(item.type for item in done.output) == ["function_call", "message"]
        assert done.output[asked.output_index].call_id == asked.call_id
        assert done.usage.total_tokens > 0
        await connection.conversation.item.create(
            item={"type": "function_call_output", "call_id": asked.call_id, "output": "sunny"}
        )
        await connection.response.create()
        seen = await until(connection, "response.done")
        assert "error" not in [event.type for event in seen]
        (transcript,) = [event for event in seen if event.type == "response.output_audio_transcript.done"]
        assert transcript.transcript == "Sentence 1 about sunny."
        await connection.conversation.item.create(
            item={"type": "function_call_output", "call_id": asked.call_id, "output": "rainy"}
        )
        error = (await until(connection, "conversation.item.added"))[-1]
        assert (error.error.code, error.error.param) == ("tool_result_duplicate", "item.call_id")


@on_loop
async def test_a_call_without_words_is_the_whole_of_an_answer() -> None:
    calls = [{**CALL, "says": 0, "times": 2}]
    async with (
        host(calls=calls, **FAST) as place,
        stock_client(place) as client,
        client.realtime.connect(model="scripted") as connection,
    ):
        await connection.session.update(session={"type": "realtime", "tools": [TOOL]})  # type: ignore[list-item]
        await connection.conversation.item.create(
            item={"type": "message", "role": "user", "content": [{"type": "input_text", "text": "weather?"}]}
        )
        await connection.response.create()
        seen = await until(connection, "response.done")
        done = seen[-1].response
        assert [item.type for item in done.output] == ["function_call", "function_call"]
        added = [event.item for event in seen if event.type == "conversation.item.added"]
        assert [(item.type, getattr(item, "name", None)) for item in added] == [
            ("message", None),
            ("function_call", "weather"),
            ("function_call", "weather"),
        ]
        for item in done.output:
            await connection.conversation.item.create(
                item={"type": "function_call_output", "call_id": item.call_id, "output": "sunny"}
            )
        await connection.response.create(response={"output_modalities": ["text"], "tool_choice": "none"})
        seen = await until(connection, "response.done")
        assert seen[-1].response.status == "completed"
        (text,) = [event for event in seen if event.type == "response.output_text.done"]
        assert text.text == "Sentence 1 about sunny."


@on_loop
async def test_a_response_outside_the_conversation_beside_one_in_it() -> None:
    async with (
        host(**FAST) as place,
        stock_client(place) as client,
        client.realtime.connect(model="scripted") as connection,
    ):
        await connection.conversation.item.create(
            item={"type": "message", "id": "first", "role": "user", "content": [{"type": "input_text", "text": "tea"}]}
        )
        await connection.response.create()
        await connection.response.create(
            response={
                "conversation": "none",
                "metadata": {"topic": "label"},
                "output_modalities": ["text"],
                "input": [
                    {"type": "item_reference", "id": "first"},
                    {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "label it"}]},
                ],  # type: ignore[list-item]
            }
        )
        done = [(await until(connection, "response.done"))[-1].response for _ in range(2)]
        beside = next(response for response in done if response.metadata)
        spoken = next(response for response in done if not response.metadata)
        assert (beside.conversation_id, beside.metadata) == (None, {"topic": "label"})
        assert beside.output[0].content[0].text == "Sentence 1 about label it."
        assert spoken.output[0].content[0].transcript == "Sentence 1 about tea."
        await connection.conversation.item.retrieve(item_id=beside.output[0].id)
        error = (await until(connection, "conversation.item.retrieved"))[-1]
        assert error.error.code == "item_retrieve_invalid_item_id"
