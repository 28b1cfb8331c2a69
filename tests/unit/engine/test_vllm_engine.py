"""The engine around vLLM's core without vLLM: admission, aborts, a core that fails, and what is said when it is absent.

The real core is proven by `make test-backends`; here it is a puppet, so that its failures can be had.
"""

from __future__ import annotations

import importlib.util
import threading
from collections import deque
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace

import pytest

from duologue.clock import AsyncioRuntime
from duologue.config.pipeline import StageConfig
from duologue.engine.assembly import replica_factory
from duologue.engine.stages import vllm_engine
from duologue.engine.stages.vllm_engine import OpenSequence, Sampling, VllmEngine, VllmSettings
from duologue.errors import AdmissionFault, ClientFault, ErrorCode, StageFault

BLOCK = 4
PATIENCE_S = 30.0


@dataclass(eq=False)
class PuppetCore:
    """A core that answers with rising numbers, one token a step; ``fail`` makes its next step raise."""

    blocks: int
    running: dict[str, deque[int]] = field(default_factory=dict)
    added: list[tuple[str, list[int]]] = field(default_factory=list)
    aborted: list[str] = field(default_factory=list)
    fail: bool = False
    hold: threading.Event = field(default_factory=threading.Event)
    shut: bool = False

    def __post_init__(self) -> None:
        self.hold.set()
        self.vllm_config = SimpleNamespace(cache_config=SimpleNamespace(num_gpu_blocks=self.blocks + 1))
        self.scheduler = SimpleNamespace(
            has_requests=lambda: bool(self.running), get_kv_cache_usage=lambda: float(bool(self.running))
        )

    def preprocess_add_request(self, request: SimpleNamespace) -> tuple[SimpleNamespace, int]:
        if request.sampling.temperature < 0:
            raise ValueError("temperature must not be below 0")
        return request, 0

    def add_request(self, request: SimpleNamespace, wave: int) -> None:
        self.added.append((request.request_id, request.tokens))
        self.running[request.request_id] = deque(range(100, 100 + request.sampling.max_tokens))

    def step_fn(self) -> tuple[dict[int, SimpleNamespace], bool]:
        self.hold.wait(PATIENCE_S)
        if self.fail:
            raise RuntimeError("the model is on fire")
        outputs = []
        for request_id, tokens in list(self.running.items()):
            token = tokens.popleft()
            outputs.append(
                SimpleNamespace(
                    request_id=request_id,
                    new_token_ids=[token],
                    finish_reason=None if tokens else "length",
                    prefill_stats=None,
                )
            )
            if not tokens:
                del self.running[request_id]
        return {0: SimpleNamespace(outputs=outputs)}, True

    def post_step(self, executed: bool) -> None:
        pass

    def abort_requests(self, request_ids: list[str]) -> None:
        self.aborted += request_ids
        for request_id in request_ids:
            self.running.pop(request_id, None)

    def shutdown(self) -> None:
        self.shut = True


@dataclass
class Rig:
    engine: VllmEngine
    core: PuppetCore
    ended: list[str]


@pytest.fixture
def rig(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Rig]:
    (tmp_path / "config.json").write_text("{}")
    core = PuppetCore(blocks=10)
    ended: list[str] = []
    monkeypatch.setattr(vllm_engine, "require_vllm", lambda: None)
    monkeypatch.setattr(vllm_engine, "_make_core", lambda settings: core)
    monkeypatch.setattr(vllm_engine, "_keeps_seeds", lambda: True)
    monkeypatch.setattr(
        vllm_engine,
        "_core_request",
        lambda request_id, tokens, sampling, seeds: SimpleNamespace(
            request_id=request_id, tokens=tokens, sampling=sampling
        ),
    )
    monkeypatch.setattr(vllm_engine, "end_replica", ended.append)
    engine = VllmEngine(VllmSettings(model=str(tmp_path), slots=2, context_tokens=32, block_tokens=BLOCK))
    yield Rig(engine, core, ended)
    core.hold.set()
    engine.shutdown()


def say(engine: VllmEngine, sequence: OpenSequence, tokens: list[int], **how: float) -> list[int]:
    sampling = Sampling(max_tokens=int(how.pop("max_tokens", 3)), **how)  # type: ignore[arg-type]
    return [token for step in engine.decode(sequence, tokens, sampling) for token in step.token_ids]


def test_the_last_token_of_an_answer_goes_in_front_of_the_next_piece(rig: Rig) -> None:
    sequence = rig.engine.open()
    assert say(rig.engine, sequence, [1, 2]) == [100, 101, 102]
    assert sequence.context == [1, 2, 100, 101]
    say(rig.engine, sequence, [3])
    assert rig.core.added == [("s1", [1, 2]), ("s1", [102, 3])]
    assert sequence.context == [1, 2, 100, 101, 102, 3, 100, 101]


def test_the_core_never_sees_more_than_the_context_holds(rig: Rig) -> None:
    sequence = rig.engine.open()
    say(rig.engine, sequence, [1] * 20, max_tokens=4)  # 23 in the context, one carried
    with pytest.raises(ClientFault, match="The conversation has 23 tokens; 2 more and 8 for the answer"):
        say(rig.engine, sequence, [1], max_tokens=8)
    assert len(rig.core.added) == 1
    assert len(say(rig.engine, sequence, [1], max_tokens=7)) == 7


def test_memory_is_counted_over_all_sequences_and_freed_by_closing(rig: Rig) -> None:
    first, second = rig.engine.open(), rig.engine.open()
    say(rig.engine, first, [1] * 20)  # 23 tokens: 6 of 10 blocks
    with pytest.raises(AdmissionFault, match="holds 40 tokens, 24 are taken and this conversation needs 20"):
        say(rig.engine, second, [1] * 16)
    assert rig.engine.open_sequences == 1
    say(rig.engine, second, [1] * 13)  # 16 tokens: the other 4
    with pytest.raises(AdmissionFault, match="needs 20") as no:
        say(rig.engine, second, [1])
    assert no.value.code is ErrorCode.RESOURCE_EXHAUSTED
    rig.engine.close(first)
    assert rig.core.aborted == ["s1"]
    assert say(rig.engine, second, [1]) == [100, 101, 102]


def test_an_abort_is_heard_by_the_core_and_nothing_comes_after_it(rig: Rig) -> None:
    sequence = rig.engine.open()
    with closing(rig.engine.decode(sequence, [1], Sampling(max_tokens=20))) as steps:
        assert next(steps).token_ids == (100,)
    assert rig.core.aborted == ["s1"]
    assert rig.engine.open_sequences == 0
    rig.engine.close(sequence)
    assert rig.core.aborted == ["s1"], "closing is idempotent"


def test_a_cancel_is_seen_though_the_model_says_nothing(rig: Rig) -> None:
    rig.core.hold.clear()

    def cancelled() -> bool:
        rig.core.hold.set()  # the step that is under way can't be interrupted; what is asked must not wait for it
        return True

    sequence = rig.engine.open()
    assert list(rig.engine.decode(sequence, [1], Sampling(max_tokens=20), cancelled=cancelled)) == []
    assert rig.core.aborted == ["s1"]
    assert rig.engine.open_sequences == 0


def test_a_core_that_fails_ends_every_request_and_the_replica(rig: Rig) -> None:
    idle, busy = rig.engine.open(), rig.engine.open()
    say(rig.engine, idle, [1])
    rig.core.hold.clear()
    failures: list[BaseException] = []

    def read() -> None:
        try:
            say(rig.engine, busy, [1])
        except StageFault as fault:
            failures.append(fault)

    reader = threading.Thread(target=read)
    reader.start()
    rig.core.fail = True
    rig.core.hold.set()
    reader.join(PATIENCE_S)
    assert [str(failure) for failure in failures] == ["The language model has ended: the model is on fire"]
    with pytest.raises(StageFault, match="has ended"):
        say(rig.engine, idle, [1])
    rig.engine.shutdown()
    assert rig.ended == ["vLLM failed: RuntimeError"]


def test_what_the_core_refuses_fails_its_request_alone(rig: Rig) -> None:
    with pytest.raises(StageFault, match="vLLM refused the request: temperature must not be below 0"):
        say(rig.engine, rig.engine.open(), [1], temperature=-1.0)
    assert say(rig.engine, rig.engine.open(), [1]) == [100, 101, 102]
    assert rig.ended == []


def test_closing_the_engine_closes_the_core_and_refuses_what_comes_later(rig: Rig) -> None:
    sequence = rig.engine.open()
    rig.engine.shutdown()
    rig.engine.shutdown()
    assert rig.core.shut
    with pytest.raises(StageFault, match="has ended"):
        say(rig.engine, sequence, [1])
    assert rig.ended == [], "an orderly end is no failure"


def test_without_vllm_the_error_names_the_extra_before_any_process_is_started(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    stage = StageConfig(name="m", factory="duologue.engine.stages.vllm_stage:VllmStage", backend="vllm")
    with pytest.raises(StageFault, match=r"pip install 'duologue\[vllm\]'"):
        replica_factory(stage, AsyncioRuntime.__new__(AsyncioRuntime))(0)


def test_settings_are_checked() -> None:
    with pytest.raises(ValueError, match="slots must be at least 1, got 0"):
        VllmSettings(model="m", slots=0)
