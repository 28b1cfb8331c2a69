"""Abilities: function calls, the waiting room, recovery, full contexts, pictures, rates, and what was heard."""

from __future__ import annotations

from typing import Final

from duologue.sim.mutations.edit import CORE, SHELL, Edit, Mutation, one

_CALLS: Final = (
    one(
        "result applied twice",
        "a result is applied once",
        f"{CORE}.tools:may_answer",
        'if record.state == "pending" and s.history.get(record.item.item_id) is record.item:',
        'if record.state == "pending" or setattr(record, "state", "pending") is None:',
    ),
    Mutation(
        "late result applied",
        "a result counts before its deadline alone",
        (
            Edit(f"{CORE}.tools:may_answer", "s.now >= record.deadline", "False"),
            Edit(f"{CORE}.tools:expire", "if s.now >= record.deadline:", "if s.now >= record.deadline + 60.0:"),
            Edit(f"{CORE}.calls:ToolLedger.deadline", "min((record.deadline", "60.0 + min((record.deadline"),
        ),
    ),
    one(
        "call outlives its epoch",
        "a call that was cancelled has no consequence",
        f"{CORE}.tools:cancel_pending",
        'record.advance("cancelled")',
        "pass",
    ),
    one(
        "result kept from a resident model",
        "a resident model hears once what became of its call",
        f"{CORE}.tools:_tell",
        "if s.resident_family:",
        "if False:",
    ),
)
_WAITING: Final = (
    Mutation(
        "newcomer overtakes the queue",
        "who waits for a slot is not overtaken",
        (
            Edit(f"{SHELL}.waiting:WaitingRoom.must_wait", "return bool(self._guests) and not called", "return False"),
            Edit(
                f"{SHELL}.waiting:WaitingRoom.departed",
                "self.call()",
                "self._runtime.call_at(now + 0.005, self.call)",
            ),
        ),
    ),
    one(
        "queue in the wrong order",
        "who came first is admitted first",
        f"{SHELL}.waiting:WaitingRoom.join",
        "self._guests.append(guest)",
        "self._guests.appendleft(guest)",
    ),
    one(
        "free slot calls nobody",
        "no slot stays free while somebody waits",
        f"{SHELL}.waiting:WaitingRoom.departed",
        "self.call()",
        "pass",
    ),
    one(
        "wait for a slot without end",
        "nobody waits longer than it says",
        f"{SHELL}.waiting:WaitingRoom.join",
        "self._runtime.now() + self._longest_s",
        "self._runtime.now() + self._longest_s * 1.5",
    ),
)
_RECOVERY: Final = (
    one(
        "lost answer said twice",
        "nothing of which something was heard is said again",
        f"{CORE}.rebuild:_asked_again",
        "or response.item.base_ms is not None",
        "or False",
    ),
    one(
        "nobody looks for another replica",
        "a session that lost its replica is placed again",
        f"{SHELL}.recovery:SessionRecovery._place",
        "self._timers[session_id] = self._runtime.call_at(self._runtime.now() + RETRY_S, self._place, session_id)",
        "pass",
    ),
    one(
        "placement keeps its epoch",
        "nothing of a lost placement has a consequence",
        f"{CORE}.rebuild:lost",
        "cancel.leave_placement(s)",
        "s.requests.clear(); s.tail.void()",
    ),
)
_CONTEXT: Final = (
    Mutation(
        "context never rolled over",
        "a context that fills is rolled over before it is full",
        (
            Edit(f"{CORE}.compaction:_act", "if undisturbed and not _on_its_way(s, record):", "if False:"),
            Edit(f"{CORE}.gauge:ContextGauge.admits", "<= most", ">= 0"),
        ),
    ),
    one(
        "roll-over loses units",
        "input that no stage had taken goes to the next request",
        f"{CORE}.resident:hand_over",
        "s.tail.readdress(old.request_id, record.request_id, tuple(s.history.items))",
        "pass",
    ),
    Mutation(
        "full context not noticed",
        "a session whose context cannot be rolled over ends in time",
        (
            Edit(
                f"{CORE}.compaction:_act",
                "if share >= (LAST_AT if s.response is not None else URGENT_AT):",
                "if False:",
            ),
            Edit(f"{CORE}.gauge:ContextGauge.admits", "<= most", ">= 0"),
        ),
    ),
)
_PICTURES: Final = (
    one(
        "picture for a model that takes none",
        "pictures reach only models that take them",
        f"{CORE}.conversation:_images_fit",
        "if not s.capabilities.takes_images:",
        "if False:",
    ),
    one(
        "too many pictures kept",
        "pictures are bounded per item",
        f"{CORE}.conversation:_images_fit",
        "size > s.runtime.max_image_bytes_per_item",
        "False",
    ),
    one(
        "pictures without end",
        "pictures are bounded per session",
        f"{CORE}.conversation:_images_fit",
        "held_bytes + size > s.runtime.max_image_bytes_per_session",
        "False",
    ),
    one(
        "picture not read",
        "a model reads what it was shown",
        f"{CORE}.history:_entries",
        "images=item.images),)",
        "images=()),)",
    ),
)
_RATES: Final = (
    one(
        "rate not limited",
        "a client may ask so often",
        f"{CORE}.turns:allowed",
        "if s.allowance.take(s.now):",
        "if True:",
    ),
    one(
        "allowance refills too fast",
        "a client may ask so often",
        "duologue.allowance:Allowance.take",
        "self._full_at = max(self._full_at, now) + self._step_s",
        "self._full_at = max(self._full_at, now) + self._step_s * 0.3",
    ),
)
_HEARD: Final = (
    one(
        "heard more than was sent",
        "nobody has heard what was not sent",
        f"{CORE}.acknowledgement:ack_playback",
        "played_ms = min(max(0.0, float(command.played_ms)), item.sent_ms)",
        "played_ms = float(command.played_ms)",
    ),
    one(
        "cut beyond what was sent",
        "nobody has heard what was not sent",
        f"{CORE}.conversation:truncate_item",
        "audio_ms = min(max(0.0, float(command.audio_end_ms)), item.sent_ms)",
        "audio_ms = float(command.audio_end_ms)",
    ),
    one(
        "playback ahead of the socket",
        "what no socket has taken is not played",
        f"{CORE}.playback:PlaybackClock.position",
        "return min(self.taken_ms, self.base_ms + (now - self.anchor) * 1000.0)",
        "return min(self.released_ms, self.base_ms + (now - self.anchor) * 3000.0)",
    ),
)

ABILITIES: Final[tuple[Mutation, ...]] = (
    *_CALLS,
    *_WAITING,
    *_RECOVERY,
    *_CONTEXT,
    *_PICTURES,
    *_RATES,
    *_HEARD,
)
