"""How a folder for vLLM is named in the configuration."""

from __future__ import annotations

import pytest

from duologue.engine.stages.vllm_engine import VllmSettings
from duologue.models.cascade.pipeline import cascade_pipeline
from duologue.models.cascade.vllm_model import settings_for


def test_a_path_alone_is_enough() -> None:
    assert settings_for("vllm:/models/a", slots=2, context_tokens=512) == VllmSettings(
        model="/models/a", slots=2, context_tokens=512
    )


def test_settings_follow_as_in_a_url() -> None:
    named = "vllm:~/b?dtype=float32&kv_cache_bytes=1000000&weights=dummy&eager=false"
    assert settings_for(named, slots=1, context_tokens=64) == VllmSettings(
        model="~/b",
        slots=1,
        context_tokens=64,
        dtype="float32",
        kv_cache_bytes=1_000_000,
        weights="dummy",
        eager=False,
    )


@pytest.mark.parametrize(
    ("query", "expected"),
    [
        ("dtyp=float32", "'dtyp' is no setting of vLLM here; allowed are block_tokens, dtype"),
        ("slots=9", "'slots' is no setting of vLLM here"),
        ("kv_cache_bytes=much", r"Expected `int`"),
        ("kv_cache_bytes=0", "kv_cache_bytes must be at least 1, got 0"),
        ("weights=none", "Invalid enum value 'none'"),
    ],
)
def test_what_is_wrong_is_named(query: str, expected: str) -> None:
    with pytest.raises(ValueError, match=f"language_model: .*{expected}"):
        settings_for(f"vllm:/m?{query}", slots=1, context_tokens=64)


def test_the_pipeline_puts_the_stage_on_vllm() -> None:
    respond = cascade_pipeline({"language_model": "vllm:/models/a", "slots": 3}).stages[1]
    assert respond.backend == "vllm"
    assert respond.options == {"language_model": "vllm:/models/a", "slots": 3}
    assert cascade_pipeline({}).stages[1].backend == "process"
