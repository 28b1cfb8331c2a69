"""Where speech begins and ends, from probabilities alone."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from duologue.config.session import EAGERNESS, Eagerness, SemanticVad, ServerVad, TurnDetection
from duologue.engine.duplex.core.endpoint import FRAME_MS, Edge, EdgeKind, Endpointer

LOUD, BAND, QUIET = 0.9, 0.4, 0.0
ONSET, CANDIDATE, RESUMED, STOP = EdgeKind.ONSET, EdgeKind.CANDIDATE, EdgeKind.RESUMED, EdgeKind.STOP
PAUSE = EdgeKind.PAUSE
LETTERS = {"S": LOUD, "-": BAND, ".": QUIET, "n": float("nan")}


def edges(script: str, detection: TurnDetection | None = None) -> list[tuple[EdgeKind, int]]:
    """Edges of a script: ``S`` loud, ``-`` between the thresholds, ``.`` quiet. Pauses that begin are left out."""
    return [edge for edge in all_edges(script, detection) if edge[0] is not PAUSE]


def all_edges(script: str, detection: TurnDetection | None = None) -> list[tuple[EdgeKind, int]]:
    """Edges of a script, with the beginning of each pause."""
    endpointer = Endpointer(detection or ServerVad())
    found = [endpointer.feed(LETTERS[char]) for char in script]
    assert endpointer.position == len(script)
    return [(edge.kind, edge.at) for edge in found if edge is not None]


@pytest.mark.parametrize(
    ("script", "expected"),
    [
        ("SS", []),
        ("SSS", [(ONSET, 0)]),  # 96 ms confirm an onset, which began with the first of them
        ("..SSS", [(ONSET, 2)]),
        ("SS.SS.", []),  # a click is no onset (field case F21)
        ("SS-S", [(ONSET, 0)]),  # a hesitating frame neither counts nor breaks off
        ("S" * 10 + "." * 15, [(ONSET, 0)]),
        ("S" * 10 + "." * 16, [(ONSET, 0), (STOP, 26)]),
        ("S" * 10 + "." * 15 + "S" + "." * 15, [(ONSET, 0)]),  # confirmed speech resets the silence clock
        ("S" * 10 + "." * 15 + "-", [(ONSET, 0)]),  # the band cannot end anything ...
        ("S" * 10 + "." + "-" * 40 + ".", [(ONSET, 0), (STOP, 52)]),  # ... but lets the clock run
        ("S" * 10 + "-" * 40, [(ONSET, 0)]),  # which it does not start
        ("S" * 10 + "." * 16 + "SSS", [(ONSET, 0), (STOP, 26), (ONSET, 26)]),  # field case F04
    ],
)
def test_server_detection(script: str, expected: list[tuple[EdgeKind, int]]) -> None:
    assert edges(script) == expected


@pytest.mark.parametrize(("silence_ms", "frames"), [(32, 1), (33, 2), (64, 2), (500, 16), (512, 16), (513, 17)])
def test_the_silence_is_as_long_as_it_was_set(silence_ms: int, frames: int) -> None:
    detection = ServerVad(silence_duration_ms=silence_ms)
    assert edges("SSS" + "." * (frames - 1), detection) == [(ONSET, 0)]
    assert edges("SSS" + "." * frames, detection)[-1] == (STOP, 3 + frames)


@pytest.mark.parametrize(
    ("script", "expected"),
    [
        ("S" * 5 + "." * 5, [(ONSET, 0)]),
        ("S" * 5 + "." * 6, [(ONSET, 0), (CANDIDATE, 11)]),  # 192 ms
        ("S" * 5 + "." * 11, [(ONSET, 0), (CANDIDATE, 11)]),
        ("S" * 5 + "." * 12, [(ONSET, 0), (CANDIDATE, 11), (CANDIDATE, 17)]),  # judged again when it has doubled
        ("S" * 5 + "." * 24, [(ONSET, 0), (CANDIDATE, 11), (CANDIDATE, 17), (CANDIDATE, 29)]),
        ("S" * 5 + "." * 6 + "SS.", [(ONSET, 0), (CANDIDATE, 11)]),  # a click does not resume
        ("S" * 5 + "." * 6 + "SSS", [(ONSET, 0), (CANDIDATE, 11), (RESUMED, 11)]),
        ("S" * 5 + "." * 6 + "SSS" + "." * 6, [(ONSET, 0), (CANDIDATE, 11), (RESUMED, 11), (CANDIDATE, 20)]),
    ],
)
def test_semantic_detection(script: str, expected: list[tuple[EdgeKind, int]]) -> None:
    assert edges(script, SemanticVad()) == expected


@pytest.mark.parametrize("eagerness", ["low", "medium", "high", "auto"])
def test_the_longest_silence_ends_a_turn_whatever_it_means(eagerness: Eagerness) -> None:
    detection = SemanticVad(eagerness=eagerness)
    limit = -(-EAGERNESS[eagerness].max_silence_ms // FRAME_MS)
    assert edges("SSS" + "." * (limit - 1), detection)[-1][0] is CANDIDATE
    assert edges("SSS" + "." * limit, detection)[-1] == (STOP, 3 + limit)


@pytest.mark.parametrize("detection", [ServerVad(), SemanticVad()])
@pytest.mark.parametrize(
    ("script", "pauses"),
    [
        ("SS.", []),  # nobody speaks yet
        ("SSS.", [4]),  # told at once ...
        ("SSS....", [4]),  # ... and once
        ("SSS.S.", [4, 6]),
        ("SSS-.", [5]),  # a hesitating frame does not begin a pause
        ("SSS.-.", [4]),
    ],
)
def test_a_pause_is_told_with_its_first_quiet_frame(script: str, pauses: list[int], detection: TurnDetection) -> None:
    assert [at for kind, at in all_edges(script, detection) if kind is PAUSE] == pauses


def test_what_ends_a_turn_at_once_is_no_pause() -> None:
    assert all_edges("SSS.", ServerVad(silence_duration_ms=32)) == [(ONSET, 0), (STOP, 4)]
    assert all_edges("SSS.", SemanticVad(candidate_ms=32)) == [(ONSET, 0), (CANDIDATE, 4)]


@given(st.text("S-.n", max_size=200), st.sampled_from([ServerVad(), SemanticVad(), SemanticVad(eagerness="high")]))
def test_every_candidate_is_in_a_pause_that_was_told(script: str, detection: TurnDetection) -> None:
    paused: int | None = None
    endpointer = Endpointer(detection)
    for char in script:
        edge = endpointer.feed(LETTERS[char])
        if edge is None:
            continue
        if edge.kind is PAUSE:
            paused = edge.at - edge.silence_ms // FRAME_MS
        elif edge.kind is CANDIDATE and edge.silence_ms == detection_candidate(detection):
            assert paused == edge.at - edge.silence_ms // FRAME_MS


def detection_candidate(detection: TurnDetection) -> int:
    assert isinstance(detection, SemanticVad)
    return detection.candidate_ms


def test_an_onset_that_is_being_confirmed_delays_the_end() -> None:
    detection = SemanticVad(eagerness="high")
    limit = -(-EAGERNESS["high"].max_silence_ms // FRAME_MS)
    almost = "SSS" + "." * (limit - 1)
    assert edges(almost + "S", detection)[-1][0] is CANDIDATE
    assert edges(almost + "S-", detection)[-1][0] is CANDIDATE
    assert edges(almost + "SSS", detection)[-1][0] is RESUMED
    assert edges(almost + "S.", detection)[-1][0] is STOP


@given(st.integers(0, 10_000), st.integers(0, 10_000), st.sampled_from(["low", "medium", "high", "auto"]))
def test_the_longer_a_pause_the_less_it_takes_to_end_the_turn(a: int, b: int, eagerness: Eagerness) -> None:
    endpointer = Endpointer(SemanticVad(eagerness=eagerness))
    low, high = sorted((a, b))
    assert 0.0 <= endpointer.completion(high) <= endpointer.completion(low) <= EAGERNESS[eagerness].completion


def test_server_detection_asks_nobody() -> None:
    assert Endpointer(ServerVad()).completion(0) == 0.0


@pytest.mark.parametrize(("threshold", "release"), [(0.5, 0.35), (0.16, 0.01), (0.9, 0.75)])
def test_the_end_threshold_lies_below_the_start_threshold(threshold: float, release: float) -> None:
    assert Endpointer(ServerVad(threshold=threshold)).release == pytest.approx(release)


@given(st.text("S-.n", max_size=200), st.sampled_from([ServerVad(), SemanticVad(), SemanticVad(eagerness="high")]))
def test_edges_come_in_an_order_that_makes_sense(script: str, detection: TurnDetection) -> None:
    speaking = candidate = False
    for kind, _ in edges(script, detection):
        match kind:
            case EdgeKind.ONSET:
                assert not speaking
                speaking, candidate = True, False
            case EdgeKind.CANDIDATE:
                assert speaking
                candidate = True
            case EdgeKind.RESUMED:
                assert speaking and candidate
                candidate = False
            case EdgeKind.STOP:
                assert speaking
                speaking = False


@given(st.text("S-.", max_size=120), st.sampled_from([ServerVad(), SemanticVad()]))
def test_an_edge_never_lies_in_the_future_or_before_the_one_before(script: str, detection: TurnDetection) -> None:
    endpointer = Endpointer(detection)
    last = 0
    for char in script:
        edge = endpointer.feed(LETTERS[char])
        if edge is not None:
            assert isinstance(edge, Edge) and last <= edge.at <= endpointer.position
            assert edge.silence_ms % FRAME_MS == 0
            last = edge.at


def test_a_reset_in_mid_speech_makes_the_next_voice_an_onset() -> None:
    endpointer = Endpointer(ServerVad())
    for char in "SSSSS":
        endpointer.feed(LETTERS[char])
    endpointer.reset_speech()
    found = [endpointer.feed(LOUD) for _ in range(3)]
    assert found[-1] == Edge(ONSET, 5)
