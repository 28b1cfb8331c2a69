"""What a request that stays open saves: ``python -m duologue.bench.vllm_reuse``, in the environment of `make test-backends`.

Each session appends 16 tokens twenty times and takes 8 tokens of answer after each, on the real SmolLM2 weights. Printed are
milliseconds from an append to its first token: the median, and the median of the first and of the last five appends, for

* ``open``: the request stays open, and only what is new is computed;
* ``cached``: the whole conversation is submitted as a new request each time, and vLLM finds whole blocks of it again;
* ``anew``: the same without that cache.

``--dummy`` runs on random weights of the same shape (no model files needed), ``--sessions`` says how many at once. On a CPU
without bfloat16 instructions ``--dtype float32`` is the faster one for prompts.
"""

from __future__ import annotations

import argparse
import json
import random
import statistics
import sys
import tempfile
import threading
import time
from pathlib import Path

from duologue.bench.smollm2 import vllm_folder
from duologue.engine.stages.vllm_engine import OpenSequence, Sampling, VllmEngine, VllmSettings

APPENDS = 20
APPEND_TOKENS = 16
ANSWER_TOKENS = 8
CONTEXT_TOKENS = 1024
ENDS = 5
_SHAPE = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_size": 576,
    "intermediate_size": 1536,
    "num_hidden_layers": 30,
    "num_attention_heads": 9,
    "num_key_value_heads": 3,
    "vocab_size": 49152,
    "max_position_embeddings": 2048,
    "rms_norm_eps": 1e-5,
    "hidden_act": "silu",
    "tie_word_embeddings": True,
    "torch_dtype": "bfloat16",
}


def converse(engine: VllmEngine, seed: int, *, stays_open: bool) -> list[float]:
    """One session: seconds from each append to its first token."""
    words = random.Random(seed)
    sampling = Sampling(max_tokens=ANSWER_TOKENS)
    sequence = engine.open()
    said: list[int] = []
    waits = []
    for _ in range(APPENDS):
        new = [words.randrange(100, 40_000) for _ in range(APPEND_TOKENS)]
        said += new
        if not stays_open:
            engine.close(sequence)
            sequence, new = engine.open(), said
        wait, answer = _first_token(engine, sequence, new, sampling)
        waits.append(wait)
        said += answer
    engine.close(sequence)
    return waits


def _first_token(
    engine: VllmEngine, sequence: OpenSequence, tokens: list[int], sampling: Sampling
) -> tuple[float, list[int]]:
    start = time.perf_counter()
    wait = 0.0
    answer: list[int] = []
    for step in engine.decode(sequence, tokens, sampling):
        wait = wait or time.perf_counter() - start
        answer += step.token_ids
    return wait, answer


def measure(engine: VllmEngine, sessions: int, *, stays_open: bool) -> list[list[float]]:
    """All sessions at once; waits per append, over the sessions."""
    found: list[list[float]] = [[] for _ in range(sessions)]

    def run(number: int) -> None:
        found[number] = converse(engine, number, stays_open=stays_open)

    threads = [threading.Thread(target=run, args=(number,)) for number in range(sessions)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return [list(waits) for waits in zip(*found, strict=True)]


def report(name: str, sessions: int, waits: list[list[float]]) -> None:
    """One line of the table."""
    parts = (waits, waits[:ENDS], waits[-ENDS:])
    medians = [statistics.median(wait for append in part for wait in append) * 1e3 for part in parts]
    print(f"{sessions:8d}  {name:8s}  {medians[0]:8.1f}  {medians[1]:8.1f}  {medians[2]:8.1f}", flush=True)


def engine_for(folder: Path, sessions: int, dtype: str, *, dummy: bool, prefix_caching: bool) -> VllmEngine:
    """An engine with room for every session."""
    settings = VllmSettings(
        model=str(folder),
        slots=sessions,
        context_tokens=CONTEXT_TOKENS,
        kv_cache_bytes=512 << 20,
        dtype=dtype,
        weights="dummy" if dummy else "files",
        prefix_caching=prefix_caching,
    )
    return VllmEngine(settings)


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sessions", type=int, nargs="+", default=[1, 4])
    parser.add_argument("--dtype", default="bfloat16")
    parser.add_argument("--dummy", action="store_true")
    chosen = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        if chosen.dummy:
            (folder / "config.json").write_text(json.dumps(_SHAPE))
        else:
            folder = vllm_folder()
        print("sessions  prompt    median ms  first 5   last 5")
        for caching, ways in ((True, (("open", True), ("cached", False))), (False, (("anew", False),))):
            engine = engine_for(folder, max(chosen.sessions), chosen.dtype, dummy=chosen.dummy, prefix_caching=caching)
            measure(engine, 1, stays_open=True)  # the first steps of an engine are slow
            for sessions in chosen.sessions:
                for name, stays_open in ways:
                    report(name, sessions, measure(engine, sessions, stays_open=stays_open))
            engine.shutdown()


if __name__ == "__main__":
    main(sys.argv[1:])
