"""Epochs, terminals, slots and cleaning: what ends, and is gone when it has."""

from __future__ import annotations

from typing import Final

from duologue.sim.mutations.edit import CORE, ENGINE, SHELL, Edit, Mutation, one

_FENCES: Final = (
    Mutation(
        "stale outputs accepted",
        "an output counts only for a live request of this epoch",
        (
            Edit(f"{CORE}.requests:RequestTable.clear", "self.records.clear()", "pass"),
            Edit(f"{CORE}.answers:model_spoke", "record.fence.epoch != s.fences.epoch", "False"),
        ),
    ),
    one(
        "epoch does not move",
        "a cancel moves the epoch before anything else",
        f"{CORE}.cancel:_leave_epoch",
        "s.fences.advance_epoch()",
        "pass",
    ),
    one(
        "cancel forgets to abort",
        "what was started under an epoch is stopped with it",
        f"{CORE}.cancel:_leave_epoch",
        "if ids:",
        "if False:",
    ),
    one(
        "sequence not restarted",
        "seq begins at 1 in every epoch",
        f"{CORE}.fences:Fences.advance_epoch",
        "self.seq = 0",
        "pass",
    ),
    Mutation(
        "abort overtaken by its submission",
        "an abort reaches a stage even if it overtook the submission, whichever part sees that first",
        (
            Edit(f"{SHELL}.model_channel:ModelChannel._mark", "waiting.stop()", "pass"),
            Edit(
                f"{ENGINE}.duplex_orchestrator:DuplexOrchestrator.submit",
                "if self.request_states.get(request_id) is not request_state:",
                "if False:",
            ),
            Edit(
                f"{ENGINE}.stage_pool:StagePool.submit_initial",
                "if self._bindings.get(request_id) is not replica:",
                "if False:",
            ),
            Edit(
                f"{CORE}.settlement:_undo_orphan",
                "if append is not None and append.request_id not in s.requests.records:",
                "if False:",
            ),
        ),
    ),
)
_TERMINALS: Final = (
    Mutation(
        "two session terminals",
        "one session has one terminal",
        (
            Edit(f"{SHELL}.emitter:SessionEmitter._send", "if self.terminal is not None:", "if False:"),
            Edit(f"{SHELL}.ending:SessionEnding.send_claimed", "if self._runner.out.terminal is None:", "if True:"),
            Edit(f"{SHELL}.manager:DuplexSessionManager.session_ended", "if not record.terminal_sent:", "if True:"),
        ),
    ),
    one(
        "cancelled response without its end",
        "every response that was created ends",
        f"{CORE}.cancel:cancel",
        'answers.finish(s, response, "cancelled", reason=scope.reason)',
        "s.response, s.last_response = None, response",
    ),
    one(
        "closing leaves the response open",
        "open responses end before the session does",
        f"{CORE}.lifecycle:begin_close",
        "cancel.cancel(s, cancel.CLOSE)",
        "s.response = None",
    ),
    one(
        "done before its audio",
        "the end of a response follows its audio",
        f"{CORE}.pacing:release",
        "entry = outbox.queue[0]",
        "entry = outbox.queue[-1]",
    ),
    one(
        "wanted answer forgotten",
        "an answer that waits begins when the one before it is over",
        f"{CORE}.answers:promote",
        's.phase == "open" and s.response is None and s.wanted',
        "False",
    ),
)
_SLOTS: Final = (
    one(
        "slot not released",
        "the slot of a session that has ended is free",
        f"{SHELL}.manager:DuplexSessionManager.session_cleaned",
        "self._registry.remove(record)",
        "pass",
    ),
    Mutation(
        "terminal before the slot is free",
        "a client that saw the end may open another session",
        (
            Edit(
                f"{SHELL}.ending:SessionEnding.finish_if_clean",
                "runner.manager.session_cleaned(session_id)",
                "runner.manager._send_terminal(runner.manager._registry.get(session_id), slot_released=True);"
                " runner.manager.session_cleaned(session_id)",
            ),
        ),
    ),
    one(
        "no rollback of an opening",
        "an opening that fails gives everything back",
        f"{SHELL}.manager:DuplexSessionManager._roll_back",
        "self._registry.remove(record)",
        "pass",
    ),
    one(
        "one slot too many",
        "sessions never exceed the limit",
        f"{SHELL}.manager:DuplexSessionManager._admit",
        "if len(self._registry) >= limit or",
        "if len(self._registry) > limit or",
    ),
)
_CLEANING: Final = (
    one(
        "cleaning does not stop stages",
        "what is forgotten is stopped wherever it runs",
        f"{ENGINE}.orchestrator:OrchestratorBase._cleanup_request_ids",
        "await self._abort_request_ids(ids)",
        "pass",
    ),
    one(
        "running count not lowered",
        "the count of running requests is exact",
        f"{ENGINE}.orchestrator:OrchestratorBase._cleanup_request_ids",
        "self._running_requests -= 1",
        "pass",
    ),
    one(
        "failed cleaning not retried",
        "what could not be stopped is kept until it could",
        f"{SHELL}.model_channel:ModelChannel._clean",
        "failed.update(ids)",
        "[self._unclean.pop(key, None) for key in ids]",
    ),
    one(
        "finished request stays bound",
        "a replica holds only what runs on it",
        f"{ENGINE}.stage_pool:StagePool.on_output",
        "if output.finished or output.error is not None:",
        "if False:",
    ),
    one(
        "dead replica's requests not failed",
        "what a replica held fails with it",
        f"{ENGINE}.orchestrator:OrchestratorBase.on_replica_dead",
        "for request_id in request_ids:",
        "for request_id in ():",
    ),
    Mutation(
        "failing plugin leaves its request",
        "what a failed plugin left running is stopped, whichever part sees to it first",
        (
            Edit(f"{SHELL}.runner:DuplexSessionRunner.plugin_failed", "if request_id is not None:", "if False:"),
            Edit(
                f"{CORE}.settlement:stage_failed",
                "s.do(AbortRequests(request_ids=(record.request_id,)))",
                "pass",
            ),
        ),
    ),
)

ENDS: Final[tuple[Mutation, ...]] = (*_FENCES, *_TERMINALS, *_SLOTS, *_CLEANING)
