"""What one append costs in the state machine: ``python -m duologue.bench.core``.

An 80 ms append to a resident model is taken in, submitted, and accepted: two steps. Printed in microseconds per append,
median and best of several rounds, beside the cost of an empty method call of the same interpreter for scale.
"""

from __future__ import annotations

import statistics
import time

from duologue.config.session import ServerVad, SessionConfig
from duologue.config.stage_config import DuplexSessionRuntimeConfig
from duologue.engine.duplex.core.effects import Detect, Effect, Emit, SubmitAppend
from duologue.engine.duplex.core.items import AppendAccepted, AudioAppended, Opened, OutputTaken, SpeechScored
from duologue.engine.duplex.core.session import DuplexEngineSession
from duologue.engine.duplex.plugin import DuplexModelSessionState, ModelCapabilities

ROUNDS = 9
APPENDS = 4_000
PCM = b"\x01\x00" * 1280


def _session(config: SessionConfig) -> DuplexEngineSession:
    session = DuplexEngineSession(
        session_id="duplex-bench",
        config=config,
        runtime_config=DuplexSessionRuntimeConfig(),
        capabilities=ModelCapabilities(
            family="resident", supports_client_commit=False, unit_ms=80, chunk_period_ms=80, input_rate_hz=16_000
        ),
        seed="bench",
        model_state=DuplexModelSessionState(),
        now=0.0,
    )
    session.step(Opened(), 0.0)
    return session


def _answer(session: DuplexEngineSession, effects: list[Effect], now: float) -> None:
    for effect in effects:
        match effect:
            case SubmitAppend():
                _answer(session, session.step(AppendAccepted(number=effect.number, submitted_at=now), now), now)
            case Detect():
                quiet = (0.0,) * (len(effect.pcm) // 1024)
                _answer(session, session.step(SpeechScored(number=effect.number, probabilities=quiet), now), now)
            case Emit():
                session.step(OutputTaken(number=effect.number), now)
            case _:
                pass


def _round(config: SessionConfig) -> float:
    session = _session(config)
    now = 0.0
    begin = time.process_time()
    for _ in range(APPENDS):
        now += 0.08
        _answer(session, session.step(AudioAppended(pcm=PCM), now), now)
    return (time.process_time() - begin) / APPENDS * 1e6


class _Empty:
    def call(self) -> None:
        pass


def _scale() -> float:
    empty = _Empty()
    begin = time.process_time()
    for _ in range(200_000):
        empty.call()
    return (time.process_time() - begin) / 200_000 * 1e6


def main() -> None:
    """Print the table."""
    for name, config in (
        ("append and accept", SessionConfig()),
        ("the same with speech detection", SessionConfig(turn_detection=ServerVad())),
    ):
        costs = [_round(config) for _ in range(ROUNDS)]
        print(f"{name}: {statistics.median(costs):.1f} us median, {min(costs):.1f} us best of {ROUNDS}")
    print(f"(an empty method call: {_scale():.3f} us)")


if __name__ == "__main__":
    main()
