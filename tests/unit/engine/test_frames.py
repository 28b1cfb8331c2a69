"""Frames between a worker and its parent: any chunking, large messages through shared memory, and what is refused."""

from __future__ import annotations

import os

import pytest
from hypothesis import given
from hypothesis import strategies as st

from duologue.engine.stages import frames
from duologue.engine.stages.arena import RING_BYTES, Ring, create_memory
from duologue.engine.stages.frames import (
    Abort,
    FrameReader,
    FrameTooLarge,
    FrameWriter,
    Ping,
    Submit,
    ToWorker,
    from_worker,
    to_worker,
)
from duologue.outputs import SamplingParams, StagePrompt, StageRequest


def submit(number: int, audio: bytes) -> Submit:
    prompt = StagePrompt(audio=audio, audio_rate_hz=16_000)
    return Submit(
        number,
        StageRequest(request_id="r", external_req_id="r", prompt=prompt, params=SamplingParams(), resumable=True),
    )


def pair() -> tuple[Ring, Ring]:
    """Both ends of one ring."""
    descriptor = create_memory()
    try:
        return Ring(descriptor), Ring(descriptor)
    finally:
        os.close(descriptor)


messages = st.lists(
    st.one_of(
        st.just(Ping()),
        st.lists(st.integers(0, 2**40)).map(lambda numbers: Abort(tuple(numbers))),
        st.sampled_from([0, 1, 5_000, 70_000]).map(lambda size: submit(1, bytes(size))),
    ),
    max_size=6,
)


@given(sent=messages, cuts=st.lists(st.integers(1, 40_000), min_size=1), ring=st.booleans())
def test_any_chunking_gives_the_same_messages(sent: list[ToWorker], cuts: list[int], ring: bool) -> None:
    ours, theirs = pair() if ring else (None, None)
    writer, reader = FrameWriter(ours), FrameReader(to_worker, theirs)
    stream = b"".join(bytes(writer.frame(message)) for message in sent)
    got: list[ToWorker] = []
    position = 0
    turn = 0
    while position < len(stream):
        size = cuts[turn % len(cuts)]
        got += reader.feed(stream[position : position + size])
        position += size
        turn += 1
    assert got == sent


def test_decision_25_large_messages_leave_only_a_note_on_the_socket() -> None:
    ours, theirs = pair()
    writer, reader = FrameWriter(ours), FrameReader(to_worker, theirs)
    for number in range(40):
        message = submit(number, bytes([number]) * 1_000_000)
        frame = bytes(writer.frame(message))
        assert len(frame) == 12
        assert reader.feed(frame) == [message]


def test_decision_25_a_full_ring_sends_inline_and_order_holds() -> None:
    ours, theirs = pair()
    writer, reader = FrameWriter(ours), FrameReader(to_worker, theirs)
    sent = [submit(number, bytes(3_000_000)) for number in range(4)]
    stream = [bytes(writer.frame(message)) for message in sent]
    assert [len(frame) == 12 for frame in stream] == [True, True, False, False]
    assert reader.feed(b"".join(stream)) == sent
    assert len(writer.frame(sent[0])) == 12, "there is room again"


def test_a_message_larger_than_the_ring_goes_inline() -> None:
    ours, theirs = pair()
    message = submit(1, bytes(RING_BYTES))
    frame = bytes(FrameWriter(ours).frame(message))
    assert len(frame) > RING_BYTES
    assert FrameReader(to_worker, theirs).feed(frame) == [message]


def test_what_cannot_be_is_refused() -> None:
    _, theirs = pair()
    with pytest.raises(ValueError, match="says that it has"):
        FrameReader(to_worker).feed(b"\x7f\xff\xff\xff")
    with pytest.raises(ValueError, match="there is none"):
        FrameReader(to_worker).feed(b"\x80\x00\x00\x01" + bytes(8))
    with pytest.raises(ValueError, match="can't be at position"):
        FrameReader(to_worker, theirs).feed(b"\x80\x00\x00\x09" + (RING_BYTES - 8).to_bytes(8, "big"))
    with pytest.raises(ValueError):
        FrameReader(to_worker).feed(b"\x00\x00\x00\x01\xc1")


@pytest.mark.parametrize("extra", [-1, 0, 1])
def test_a_message_has_a_limit(extra: int, monkeypatch: pytest.MonkeyPatch) -> None:
    message = submit(1, bytes(2_000))
    size = len(FrameWriter().frame(message)) - 4
    monkeypatch.setattr(frames, "MAX_FRAME_BYTES", size - extra)
    if extra <= 0:
        assert len(FrameWriter().frame(message)) == size + 4
        return
    with pytest.raises(FrameTooLarge, match="more than a message may have"):
        FrameWriter().frame(message)


def test_a_message_that_is_nested_too_deeply_is_refused() -> None:
    body = b"\x94\x04\x01" + b"\x91" * 5_000
    with pytest.raises(ValueError, match="nested too deeply"):
        FrameReader(from_worker).feed(len(body).to_bytes(4, "big") + body)
