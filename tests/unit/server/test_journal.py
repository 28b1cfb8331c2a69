"""The journal against a model: what is held, what is a gap, and that bounds hold."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from duologue.server.journal import Gap, Journal

operations = st.lists(
    st.one_of(
        st.tuples(st.just("record"), st.integers(1, 40)),
        st.tuples(st.just("ack"), st.integers(-2, 60)),
        st.tuples(st.just("wait"), st.integers(0, 8)),
    ),
    max_size=40,
)


@given(operations, st.integers(0, 60))
def test_a_replay_is_complete_or_a_gap(steps: list[tuple[str, int]], asked: int) -> None:
    journal = Journal(max_bytes=100, ttl_s=10.0)
    now, acknowledged = 0.0, 0
    sent: list[tuple[bytes, float]] = []
    for step, amount in steps:
        if step == "record":
            sent.append((bytes([len(sent) % 256]) * amount, now))
            assert journal.record(sent[-1][0], now) == len(sent)
        elif step == "wait":
            now += amount
        else:
            known = 0 <= amount <= len(sent)
            assert journal.acknowledge(amount) is known
            acknowledged = max(acknowledged, amount) if known else acknowledged
        assert journal.held_bytes <= 100
    replay = journal.after(asked, now)
    if isinstance(replay, Gap):
        fresh = [frame for frame, at in sent[asked:] if now - at <= 10.0]
        complete = len(fresh) == len(sent[asked:]) and sum(map(len, fresh)) <= 100
        assert asked > len(sent) or asked < acknowledged or not complete
    else:
        assert replay == [frame for frame, _ in sent[asked:]]


def test_numbers_never_go_back() -> None:
    journal = Journal(max_bytes=10, ttl_s=1.0)
    assert [journal.record(b"x" * 20, float(at)) for at in range(0, 50, 10)] == [1, 2, 3, 4, 5]
    assert journal.after(4, 50.0) == Gap("journal_overflow")
    assert journal.after(5, 50.0) == []
    assert journal.after(6, 50.0) == Gap("journal_gap")
