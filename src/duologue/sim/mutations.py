"""Safeguards that are switched off, one at a time, to prove that the simulator notices (:mod:`duologue.sim.mutation`)."""

from __future__ import annotations

from typing import Final

import msgspec


class Edit(msgspec.Struct, frozen=True):
    """In the function ``target`` (``package.module:Class.method``) the text ``old`` becomes ``new``."""

    target: str
    old: str
    new: str


class Mutation(msgspec.Struct, frozen=True):
    """One safeguard; ``what`` says what it guards."""

    name: str
    what: str
    edits: tuple[Edit, ...]


_CORE: Final = "duologue.engine.duplex.core"
_SHELL: Final = "duologue.engine.duplex.session"
_ENGINE: Final = "duologue.engine"
_SERVER: Final = "duologue.server"


def _one(name: str, what: str, target: str, old: str, new: str) -> Mutation:
    return Mutation(name, what, (Edit(target, old, new),))


_FENCES: Final = (
    Mutation(
        "stale outputs accepted",
        "an output counts only for a live request of this epoch",
        (
            Edit(f"{_CORE}.requests:RequestTable.clear", "self.records.clear()", "pass"),
            Edit(f"{_CORE}.answers:model_spoke", "record.fence.epoch != s.fences.epoch", "False"),
        ),
    ),
    _one(
        "epoch does not move",
        "a cancel moves the epoch before anything else",
        f"{_CORE}.cancel:_leave_epoch",
        "s.fences.advance_epoch()",
        "pass",
    ),
    _one(
        "cancel forgets to abort",
        "what was started under an epoch is stopped with it",
        f"{_CORE}.cancel:_leave_epoch",
        "if ids:",
        "if False:",
    ),
    _one(
        "sequence not restarted",
        "seq begins at 1 in every epoch",
        f"{_CORE}.fences:Fences.advance_epoch",
        "self.seq = 0",
        "pass",
    ),
    _one(
        "submission of a dropped request kept",
        "a request that was dropped while it was submitted leaves nothing behind",
        f"{_ENGINE}.duplex_orchestrator:DuplexOrchestrator.submit",
        "if self.request_states.get(request_id) is not request_state:",
        "if False:",
    ),
)
_TERMINALS: Final = (
    Mutation(
        "two session terminals",
        "one session has one terminal",
        (
            Edit(f"{_SHELL}.emitter:SessionEmitter._send", "if self.terminal is not None:", "if False:"),
            Edit(f"{_SHELL}.ending:SessionEnding.send_claimed", "if self._runner.out.terminal is None:", "if True:"),
            Edit(f"{_SHELL}.manager:DuplexSessionManager.session_ended", "if not record.terminal_sent:", "if True:"),
        ),
    ),
    _one(
        "cancelled response without its end",
        "every response that was created ends",
        f"{_CORE}.cancel:cancel",
        'answers.finish(s, response, "cancelled", reason=scope.reason)',
        "s.response, s.last_response = None, response",
    ),
    _one(
        "closing leaves the response open",
        "open responses end before the session does",
        f"{_CORE}.lifecycle:begin_close",
        "cancel.cancel(s, cancel.CLOSE)",
        "s.response = None",
    ),
    _one(
        "done before its audio",
        "the end of a response follows its audio",
        f"{_CORE}.pacing:release",
        "entry = outbox.queue[0]",
        "entry = outbox.queue[-1]",
    ),
    _one(
        "wanted answer forgotten",
        "an answer that waits begins when the one before it is over",
        f"{_CORE}.answers:promote",
        's.phase == "open" and s.response is None and s.wanted',
        "False",
    ),
)
_SLOTS: Final = (
    _one(
        "slot not released",
        "the slot of a session that has ended is free",
        f"{_SHELL}.manager:DuplexSessionManager.session_cleaned",
        "self._registry.remove(record)",
        "pass",
    ),
    Mutation(
        "terminal before the slot is free",
        "a client that saw the end may open another session",
        (
            Edit(
                f"{_SHELL}.ending:SessionEnding.finish_if_clean",
                "runner.manager.session_cleaned(session_id)",
                "runner.manager._send_terminal(runner.manager._registry.get(session_id), slot_released=True);"
                " runner.manager.session_cleaned(session_id)",
            ),
        ),
    ),
    _one(
        "no rollback of an opening",
        "an opening that fails gives everything back",
        f"{_SHELL}.manager:DuplexSessionManager._roll_back",
        "self._registry.remove(record)",
        "pass",
    ),
    _one(
        "one slot too many",
        "sessions never exceed the limit",
        f"{_SHELL}.manager:DuplexSessionManager._admit",
        "if len(self._registry) >= limit or",
        "if len(self._registry) > limit or",
    ),
)
_CLEANING: Final = (
    _one(
        "cleaning does not stop stages",
        "what is forgotten is stopped wherever it runs",
        f"{_ENGINE}.orchestrator:OrchestratorBase._cleanup_request_ids",
        "await self._abort_request_ids(ids)",
        "pass",
    ),
    _one(
        "running count not lowered",
        "the count of running requests is exact",
        f"{_ENGINE}.orchestrator:OrchestratorBase._cleanup_request_ids",
        "self._running_requests -= 1",
        "pass",
    ),
    _one(
        "failed cleaning not retried",
        "what could not be stopped is kept until it could",
        f"{_SHELL}.model_channel:ModelChannel._clean",
        "failed.update(ids)",
        "[self._unclean.pop(key, None) for key in ids]",
    ),
    _one(
        "withdrawn submission not stopped again",
        "an abort reaches a stage even if it overtook the submission",
        f"{_SHELL}.model_channel:ModelChannel._submission_ended",
        "self.abort((effect.request_id,))",
        "pass",
    ),
    _one(
        "finished request stays bound",
        "a replica holds only what runs on it",
        f"{_ENGINE}.stage_pool:StagePool.on_output",
        "if output.finished or output.error is not None:",
        "if False:",
    ),
    _one(
        "dead replica's requests not failed",
        "what a replica held fails with it",
        f"{_ENGINE}.orchestrator:OrchestratorBase.on_replica_dead",
        "for request_id in request_ids:",
        "for request_id in ():",
    ),
    _one(
        "failing plugin leaves its request",
        "what a failed plugin left running is stopped",
        f"{_SHELL}.runner:DuplexSessionRunner.plugin_failed",
        "if request_id is not None:",
        "if False:",
    ),
)
_INPUT: Final = (
    _one(
        "tail out of order",
        "submission order is wire order",
        f"{_CORE}.tail:AppendTail.next",
        "self.queue.popleft()",
        "self.queue.pop()",
    ),
    _one(
        "submitted behind a failure",
        "nothing behind an append that failed is submitted",
        f"{_CORE}.submission:failed",
        "s.tail.void()",
        "behind = behind[:1]",
    ),
    _one(
        "rejected units lost",
        "input that no stage took returns to the buffer",
        f"{_CORE}.submission:failed",
        "resident.give_back(s, behind)",
        "pass",
    ),
    _one(
        "prefix off by a sample",
        "what the model is fed is what was sent",
        f"{_CORE}.audio:AudioLedger.copy",
        "low = max(0, start - begin) * 2",
        "low = max(0, start - begin) * 2 + 2",
    ),
    _one(
        "turn begins late",
        "a turn begins before its onset",
        f"{_CORE}.turns:onset",
        "position - s.audio.samples(detection.prefix_padding_ms)",
        "position + 800",
    ),
    _one(
        "no watchdog for a turn without input",
        "a turn whose input stops is ended",
        f"{_CORE}.intake:starvation_at",
        "if s.turn is None or",
        "if True or",
    ),
    _one(
        "early commands lost",
        "what a client sends while its session is being opened is kept",
        f"{_SERVER}.connection:Connection._go_live",
        'while self._early and self.state == "live":',
        "while False:",
    ),
)
_OUTPUT: Final = (
    _one(
        "nothing is withdrawn",
        "what no socket has taken is not sent after a cancel",
        f"{_CORE}.pacing:invalidate",
        "s.do(InvalidateOutput(response_id=response_id))",
        "pass",
    ),
    _one(
        "last queue not purged",
        "the queue before the socket drops what was withdrawn",
        f"{_SERVER}.attachment:Attachment.deliver",
        "self._purge(message.response_id)",
        "pass",
    ),
    _one(
        "no pacing",
        "audio leaves when it is about to be played",
        f"{_CORE}.pacing:_release_audio",
        "if send_ahead_ms is not None and",
        "if False and",
    ),
    _one(
        "slice lost",
        "audio is delivered without a gap",
        f"{_CORE}.outbox:Outbox.slice",
        "entry.offset += len(piece)",
        "entry.offset += len(piece) + (2 if entry.offset > 9_000 else 0)",
    ),
    _one(
        "unheard text told to the model",
        "the conversation holds what was heard",
        f"{_CORE}.history:Item.heard_text",
        "self.spoken.text if cut is None else self.spoken.heard(int(cut))",
        "self.spoken.text",
    ),
    _one(
        "paused for ever",
        "held pieces are released",
        f"{_ENGINE}.orchestrator:OrchestratorBase.set_paused",
        "if not paused and state.held:",
        "if False:",
    ),
)
_LEASE: Final = (
    _one(
        "journal trimmed too far",
        "only what the client has seen leaves the journal",
        f"{_SERVER}.journal:Journal.acknowledge",
        "self._entries[0].number <= number",
        "self._entries[0].number <= number + 3",
    ),
    _one(
        "replay gap unnoticed",
        "what is lost to a bound is said, never passed over",
        f"{_SERVER}.journal:Journal.after",
        "if number < self._tail:",
        "if False:",
    ),
    _one(
        "replay repeats the last frame",
        "a resume yields each frame once",
        f"{_SERVER}.journal:Journal.after",
        "if entry.number > number]",
        "if entry.number >= number]",
    ),
    Mutation(
        "resume without compare-and-swap",
        "of two racing resumes one wins",
        (Edit(f"{_CORE}.lease:Lease.resume", "if expected != self.generation:", "if False:"),),
    ),
    _one(
        "any token resumes",
        "only the current token resumes",
        f"{_SERVER}.token:ResumeToken.matches",
        "return hmac.compare_digest(_digest(token), self._digest)",
        "return True",
    ),
    _one(
        "replaced connection not told",
        "a session has one owner",
        f"{_SERVER}.connection:Connection._resumed",
        "previous.replaced()",
        "pass",
    ),
    Mutation(
        "loser detaches the winner",
        "a connection that lost the session cannot put it in grace",
        (
            Edit(
                f"{_CORE}.lease:Lease.detach",
                "(expected is not None and expected != self.generation)",
                "False",
            ),
            Edit(
                f"{_SHELL}.manager:DuplexSessionManager._detach",
                "if msg.expected_generation is not None and msg.expected_generation != current:",
                "if False:",
            ),
            Edit(
                f"{_SERVER}.connection:Connection.disconnected",
                "attachment.owner is self",
                "True",
            ),
        ),
    ),
    _one(
        "grace too short",
        "a lease never ends before it is due",
        f"{_CORE}.lease:Lease.expiry",
        "now >= self.detached_at + grace_s:",
        "now >= self.detached_at + grace_s * 0.3:",
    ),
    _one(
        "idle too short",
        "a lease never ends before it is due",
        f"{_CORE}.lease:Lease.expiry",
        "now >= self.last_activity + idle_ttl_s:",
        "now >= self.last_activity + idle_ttl_s * 0.5:",
    ),
    _one(
        "leases never end",
        "a lease ends when it is due",
        f"{_SHELL}.manager:DuplexSessionManager._reap_one",
        "if reason is not None:",
        "if False:",
    ),
)
_SETTINGS: Final = (
    _one(
        "refused settings adopted",
        "a session.update is all or nothing",
        f"{_CORE}.lifecycle:config_judged",
        "if item.code is not None:",
        "if False:",
    ),
    _one(
        "silence too often",
        "silence is fed once in a period",
        f"{_CORE}.silence:compute_silence_continuation_deadline",
        "return max(0.0, deadline - now), deadline + chunk_period_s",
        "return max(0.0, deadline - now) / 4, deadline + chunk_period_s / 4",
    ),
    _one(
        "silence without end",
        "an answer is given so much silence and no more",
        f"{_CORE}.resident:continuation_due",
        "if silence.units >= limit and response is not None:",
        "if False:",
    ),
    _one(
        "fault reaches everybody",
        "an exception in one session's plugin ends that session only",
        f"{_SHELL}.runner:DuplexSessionRunner.plugin_failed",
        "self.fail(",
        "[self.manager.end_session(other.session_id, 'closed', 'x', None)"
        " for other in self.manager._registry.records()]; self.fail(",
    ),
    _one(
        "operation answered twice",
        "each operation is answered exactly once",
        f"{_SHELL}.manager:DuplexSessionManager._succeed",
        "self.result_sink.put_nowait(",
        "self.result_sink.put_nowait(ResultMessage(control_id=control_id, value=value)); self.result_sink.put_nowait(",
    ),
)

MUTATIONS: Final[tuple[Mutation, ...]] = (
    *_FENCES,
    *_TERMINALS,
    *_SLOTS,
    *_CLEANING,
    *_INPUT,
    *_OUTPUT,
    *_LEASE,
    *_SETTINGS,
)
