"""Function calls of a language model behind an OpenAI-compatible endpoint."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine

import msgspec
import pytest

from duologue.config.session import SessionConfig
from duologue.engine.duplex.contracts import DuplexFence, DuplexOutputContext, DuplexRequestIdentity
from duologue.engine.duplex.results import CutReason, CutShort, FunctionCall, Speech, TokensUsed, TurnEnded
from duologue.models.cascade.chat import ChatMessage as CascadeMessage
from duologue.models.cascade.chat import Role
from duologue.models.cascade.context import fit_history
from duologue.models.cascade.edges import RESPOND, SPEAK
from duologue.models.cascade.pipeline import cascade_pipeline, on_endpoint
from duologue.models.cascade.plugin import CascadePlugin
from duologue.outputs import (
    ChatMessage,
    FinishReason,
    Image,
    NamedTool,
    RequestOutput,
    ToolCall,
    ToolDefinition,
    ToolMenu,
)
from tests.integration.backends.endpoint import FakeEndpoint, fake_endpoint
from tests.integration.backends.replica import PATIENCE_S
from tests.integration.backends.test_http import request, running

MENU = ToolMenu(
    tools=(ToolDefinition(name="weather", description="The weather.", parameters='{"type": "object"}'),),
    choice=NamedTool("weather"),
    parallel=False,
)
ASKED = ChatMessage("user", 'call weather {"city": "Rome"}')


def play(scenario: Callable[[FakeEndpoint], Coroutine[object, object, None]]) -> None:
    async def whole() -> None:
        async with asyncio.timeout(PATIENCE_S), fake_endpoint() as fake:
            await scenario(fake)

    asyncio.run(whole())


def test_a_call_comes_whole_and_its_result_goes_back() -> None:
    async def scenario(fake: FakeEndpoint) -> None:
        options = {"language_model": fake.base_url}
        assert on_endpoint(options)
        async with running(cascade_pipeline(options).stages[RESPOND]) as one:
            asked = request("r", messages=(ASKED,))
            await one.client.submit(msgspec.structs.replace(asked, prompt=with_menu(asked.prompt)))
            await one.sink.until(lambda: one.sink.ended("r"))
            last = one.sink.of("r")[-1]
            assert last.calls == (ToolCall(name="weather", arguments='{"city": "Rome"}'),)
            assert last.finish_reason == "stop" and last.text == ""
            body = fake.requests[0].json
            assert body["tool_choice"] == {"type": "function", "function": {"name": "weather"}}
            assert body["parallel_tool_calls"] is False
            assert body["tools"] == [
                {
                    "type": "function",
                    "function": {
                        "name": "weather",
                        "description": "The weather.",
                        "parameters": {"type": "object"},
                    },
                }
            ]
            call = ToolCall(name="weather", arguments="{}", call_id="call_ours")
            history = (
                ASKED,
                ChatMessage("assistant", "", calls=(call,)),
                ChatMessage("tool", "sunny", call_id="call_ours"),
            )
            await one.client.submit(request("s", messages=history))
            await one.sink.until(lambda: one.sink.ended("s"))
            assert "".join(output.text for output in one.sink.of("s")) == "It gave sunny."
            body = fake.requests[1].json
            assert "tools" not in body
            assert body["messages"][-2:] == [
                {
                    "role": "assistant",
                    "content": None,
                    "tool_calls": [
                        {"id": "call_ours", "type": "function", "function": {"name": "weather", "arguments": "{}"}}
                    ],
                },
                {"role": "tool", "tool_call_id": "call_ours", "content": "sunny"},
            ]

    play(scenario)


def with_menu(prompt):  # type: ignore[no-untyped-def]
    return msgspec.structs.replace(prompt, menu=MENU)


def context(final_stage_id: int) -> DuplexOutputContext:
    fence = DuplexFence("s", 0, 0)
    return DuplexOutputContext(
        identity=DuplexRequestIdentity("s", fence), final_stage_id=final_stage_id, segment_finished=False
    )


@pytest.mark.parametrize("spoken", [True, False])
def test_the_cascade_reports_calls_and_counts_whether_it_speaks_or_writes(spoken: bool) -> None:
    plugin = CascadePlugin(calls_functions=True)
    assert plugin.capabilities.calls_functions and not CascadePlugin().capabilities.calls_functions
    state = plugin.create_session_state(SessionConfig())
    output = request_output(finished=True)
    decision = plugin.decide(state, RESPOND, output, context(SPEAK if spoken else RESPOND))
    beside = (
        FunctionCall(name="weather", arguments="{}"),
        TokensUsed(input_tokens=9, output_tokens=2, cached_tokens=4),
    )
    if spoken:
        assert decision.results == beside and decision.forward
    else:
        assert decision.results == (Speech(text="Wait."), *beside, TurnEnded())
    unfinished = plugin.decide(state, RESPOND, request_output(finished=False), context(SPEAK))
    assert unfinished.results == ()


@pytest.mark.parametrize("spoken", [True, False])
@pytest.mark.parametrize(
    ("ends", "reason"), [("length", "max_output_tokens"), ("content_filter", "content_filter"), ("stop", None)]
)
def test_the_cascade_reports_an_answer_that_was_not_finished(
    ends: FinishReason, reason: CutReason | None, spoken: bool
) -> None:
    plugin = CascadePlugin()
    output = msgspec.structs.replace(request_output(finished=True), finish_reason=ends)
    decision = plugin.decide(
        plugin.create_session_state(SessionConfig()), RESPOND, output, context(SPEAK if spoken else RESPOND)
    )
    told = [result.reason for result in decision.results if isinstance(result, CutShort)]
    assert told == ([reason] if reason else [])
    assert decision.forward == spoken


def request_output(*, finished: bool) -> RequestOutput:
    return RequestOutput(
        request_id="r",
        text="Wait.",
        finished=finished,
        calls=(ToolCall(name="weather"),) if finished else (),
        metadata={"prompt_tokens": 9, "generated_tokens": 2, "cached_tokens": 4} if finished else {},
    )


def test_a_conversation_that_is_cut_never_begins_with_a_result() -> None:
    call = ToolCall(name="weather", arguments="x" * 60, call_id="c")
    turn = [
        CascadeMessage(Role.USER, "How is it?"),
        CascadeMessage(Role.ASSISTANT, "", (call,)),
        CascadeMessage(Role.TOOL, "sunny", (), "c"),
        CascadeMessage(Role.ASSISTANT, "It is sunny."),
    ]
    for budget in range(16, 300, 7):
        kept = fit_history(turn * 3, budget)
        assert kept[0].role is Role.USER or len(kept) == 1
    (alone,) = fit_history(turn[:3], 16)
    assert alone.role is Role.USER and alone.content == "sunny"


def test_a_picture_goes_to_the_endpoint() -> None:
    picture = Image("data:image/png;base64,AAAA", "low")

    async def scenario(fake: FakeEndpoint) -> None:
        async with running(
            cascade_pipeline({"language_model": fake.base_url, "endpoint_images": True}).stages[RESPOND]
        ) as one:
            shown = (ChatMessage("user", "Look.", images=(picture,)), ChatMessage("user", "echo ok"))
            await one.client.submit(request("r", messages=shown))
            await one.sink.until(lambda: one.sink.ended("r"))
            assert fake.requests[0].json["messages"][-2] == {
                "role": "user",
                "content": [
                    {"type": "text", "text": "Look."},
                    {"type": "image_url", "image_url": {"url": picture.url, "detail": "low"}},
                ],
            }

    play(scenario)
    assert CascadePlugin(takes_images=True).capabilities.takes_images and not CascadePlugin().capabilities.takes_images
