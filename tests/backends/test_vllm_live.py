"""The embedded assistant with its language model on vLLM, by configuration alone: a spoken session and a stock client.

Random weights: what it says means nothing, that it says it is the point.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.backends.tiny import write_tiny_model, write_tiny_tokenizer
from tests.integration.cascade.recording import word_error_rate
from tests.integration.http.host import host, on_loop, stock_client
from tests.integration.http.live import QUESTION, chat, talk

CONTEXT_TOKENS = 2048

pytestmark = pytest.mark.weights


def test_with_the_language_model_on_vllm(models_dir: Path, tmp_path: Path) -> None:
    folder = write_tiny_model(tmp_path / "tiny", context_tokens=CONTEXT_TOKENS)
    write_tiny_tokenizer(folder)

    @on_loop
    async def run() -> None:
        model = f"vllm:{folder}?weights=dummy&kv_cache_bytes={4 << 20}"
        async with (
            host(plugin="cascade", models_dir=str(models_dir), language_model=model, slots=2) as place,
            stock_client(place) as client,
        ):
            written = await chat(client, max_tokens=12)
            assert written.choices[0].finish_reason == "length"
            assert written.usage is not None
            assert (written.usage.completion_tokens, bool(written.choices[0].message.content)) == (12, True)
            turn = await talk(place, client)
            # Random weights seldom find an end of their own: then the answer's limit ends it.
            assert turn.status in ("completed", "incomplete")
            assert word_error_rate(QUESTION, turn.heard) == 0
            assert turn.text

    run()
