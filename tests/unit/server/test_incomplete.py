"""An answer that the model did not finish ends as ``incomplete`` and says why: through the server, in both dialects."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from duologue.models.scripted import Script
from duologue.sim.loop import VirtualRuntime, virtual
from tests.unit.server.test_turn_taking import Caller, calling

WORDS = Script(sentences=2, sentence_ms=400)  # of five words each: "Sentence 1 about hello there."
FIRST = "Sentence 1 about hello there."


async def ask(caller: Caller, **response: object) -> Any:
    """The end of the answer to a written question."""
    part = {"type": "input_text", "text": "hello there"}
    caller.send("conversation.item.create", item={"type": "message", "role": "user", "content": [part]})
    caller.send("response.create", response=response)
    await asyncio.sleep(5)
    return caller.of("response.done")[-1]["response"]


def limited(duplex: bool, limit: int | str) -> dict[str, object]:
    """The session's limit, where each dialect has it."""
    return {"max_response_output_tokens" if duplex else "max_output_tokens": limit}


@pytest.mark.parametrize("duplex", [False, True])
@pytest.mark.parametrize(("limit", "said"), [(9, f"{FIRST} Sentence 2 about hello"), (5, FIRST), (1, "Sentence")])
@virtual
async def test_an_answer_at_its_limit(limit: int, said: str, duplex: bool, runtime: VirtualRuntime) -> None:
    async with calling(runtime, None, duplex=duplex, script=WORDS, **limited(duplex, limit)) as caller:
        response = await ask(caller)
        assert response["status"] == "incomplete"
        assert response["status_details"] == {"type": "incomplete", "reason": "max_output_tokens"}
        assert response["usage"]["output_tokens"] == limit
        (item,) = response["output"]
        assert (item["status"], item["content"][0]["transcript"].strip()) == ("incomplete", said)
        (transcript,) = caller.of("response.output_audio_transcript.done")
        assert transcript["transcript"].strip() == said


@pytest.mark.parametrize("duplex", [False, True])
@pytest.mark.parametrize("limit", [10, 11, "inf"])
@virtual
async def test_an_answer_within_its_limit(limit: int | str, duplex: bool, runtime: VirtualRuntime) -> None:
    async with calling(runtime, None, duplex=duplex, script=WORDS, **limited(duplex, limit)) as caller:
        response = await ask(caller)
        assert (response["status"], response.get("status_details")) == ("completed", None)


@pytest.mark.parametrize("where", ["auto", "none"])
@pytest.mark.parametrize("duplex", [False, True])
@virtual
async def test_a_written_answer_has_the_limit_of_its_own_request(
    where: str, duplex: bool, runtime: VirtualRuntime
) -> None:
    async with calling(runtime, None, duplex=duplex, script=WORDS) as caller:
        response = await ask(caller, max_output_tokens=7, output_modalities=["text"], conversation=where)
        assert (response["status"], response["status_details"]["reason"]) == ("incomplete", "max_output_tokens")
        assert response["output"][0]["content"][0]["text"].strip() == f"{FIRST} Sentence 2"
        again = await ask(caller, output_modalities=["text"])
        assert again["status"] == "completed", "the limit was that request's alone"


@pytest.mark.parametrize("duplex", [False, True])
@virtual
async def test_an_answer_that_a_filter_ends(duplex: bool, runtime: VirtualRuntime) -> None:
    script = Script(sentences=2, filtered="hello")
    async with calling(runtime, None, duplex=duplex, script=script) as caller:
        response = await ask(caller)
        assert response["status_details"] == {"type": "incomplete", "reason": "content_filter"}
        assert caller.of("response.done")[-1]["response"]["output"][0]["status"] == "incomplete"
