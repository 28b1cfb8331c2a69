"""Invariants of a session, checked after every step (the cheap ones) and by tests and the simulator (all of them)."""

from __future__ import annotations

from duologue.engine.duplex.core import hearing
from duologue.engine.duplex.core.invariants import require
from duologue.engine.duplex.core.state import SessionState


def after_step(s: SessionState) -> None:
    """What costs next to nothing."""
    audio = s.audio
    if audio.received_bytes != audio.consumed_bytes + audio.discarded_bytes + (audio.end - audio.floor) * 2:
        require(False, f"input bytes do not add up: {audio.received_bytes} received")
    outbox = s.outbox
    if outbox.released_bytes and (outbox.released_bytes < 0 or not outbox.released):
        require(False, f"{outbox.released_bytes} output bytes are counted for {len(outbox.released)} events")
    response = s.response
    if response is not None and not response.open:
        require(False, f"response {response.response_id} is {response.state} and still current")
    if s.phase == "closed":
        if response is not None:
            require(False, f"the session is closed and response {response.response_id} is open")
        require(not s.asides, f"the session is closed and {len(s.asides)} responses outside the conversation are open")
    if s.overlap is not None:
        require(s.turn is not None, "speech during an answer is undecided but nobody speaks")
        require(outbox.held, "speech during an answer is undecided and the pacer is not held")
    elif outbox.held:
        require(False, "the pacer is held without a decision being due")


def deep(s: SessionState) -> None:
    """Everything, at any cost."""
    after_step(s)
    playback = s.playback
    require(0.0 <= playback.position(s.now) <= playback.taken_ms + 1e-6, "playback is ahead of what was handed over")
    require(playback.taken_ms <= playback.released_ms + 1e-6, "more was taken than released")
    for aside in s.asides.values():
        clock, response_id = aside.clock, aside.response.response_id
        waiting = sum(entry.beside_ms for entry in s.outbox.released if entry.response_id == response_id)
        require(abs(clock.released_ms - clock.taken_ms - waiting) < 1e-3, "what was said beside does not add up")
        require(not aside.ended or bool(aside.line.queue), f"{response_id} said all and is open")
    untaken = sum(entry.audio_ms for entry in s.outbox.released)
    require(abs(playback.released_ms - playback.taken_ms - untaken) < 1e-3, "released audio does not add up")
    require(
        s.outbox.released_bytes == sum(entry.size_bytes for entry in s.outbox.released), "output bytes do not add up"
    )
    require(len({id(item) for item in s.history.items}) == len(s.history.items), "an item stands twice in history")
    require(set(s.history.by_id) == {item.item_id for item in s.history.items}, "history index and list differ")
    require(len(s.history) <= s.runtime.max_items_per_session, "history exceeds its bound")
    require(len(s.wanted) <= s.runtime.max_pending_turns_per_session, "more turns wait than may")
    wait = s.commit_wait
    require(
        wait is None or wait.ready or s.detection.endpointer is not None, "a commit waits for a detector that is off"
    )
    require(wait is None or not wait.ready or not s.tail.idle, "a commit waits for a tail that is at rest")
    require(s.turn is None or s.detection.endpointer is not None, "a turn is in progress without a detector")
    waits_ms = sum(s.sequel.duration_ms(result) for _, result in s.sequel.results)
    require(abs(waits_ms - s.sequel.audio_ms) < 1e-3, "the audio that waits behind an answer does not add up")
    require(not s.cramped, "a piece of input fits nowhere")
    require(not s.sequel.results or s.response is not None, "answers wait behind none")
    for record in s.requests.records.values():
        on_its_way = sum(record.context.waiting)
        require(on_its_way <= s.capabilities.context_units, f"{on_its_way} units are on their way to a context")
        require(record.fence.epoch == s.fences.epoch, f"request {record.request_id} outlived its epoch")
    for committed in s.committed.values():
        require(not hearing.settled(s, committed), f"the audio of turn {committed.item_id} is kept for nobody")
    require(s.tail.queued_bytes == sum(len(append.audio) for append in s.tail.queue), "queued input does not add up")
    for append in s.tail.queue:
        require(append.state == "queued", f"a {append.state} append waits in the queue")
    open_items = [item.item_id for item in s.history.items if item.status == "in_progress"]
    expected = [s.response.item.item_id] if s.response is not None and s.history.get(s.response.item.item_id) else []
    require(open_items == expected, f"items in progress: {open_items}, expected {expected}")
