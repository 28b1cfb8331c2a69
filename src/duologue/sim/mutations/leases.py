"""Journal, lease and settings: who owns a session, what it has seen, and what is in force."""

from __future__ import annotations

from typing import Final

from duologue.sim.mutations.edit import CORE, SERVER, SHELL, Edit, Mutation, one

_LEASE: Final = (
    one(
        "journal trimmed too far",
        "only what the client has seen leaves the journal",
        f"{SERVER}.journal:Journal.acknowledge",
        "self._entries[0].number <= number",
        "self._entries[0].number <= number + 3",
    ),
    one(
        "replay gap unnoticed",
        "what is lost to a bound is said, never passed over",
        f"{SERVER}.journal:Journal.after",
        "if number < self._tail:",
        "if False:",
    ),
    one(
        "replay repeats the last frame",
        "a resume yields each frame once",
        f"{SERVER}.journal:Journal.after",
        "if entry.number > number]",
        "if entry.number >= number]",
    ),
    Mutation(
        "resume without compare-and-swap",
        "of two racing resumes one wins",
        (Edit(f"{CORE}.lease:Lease.resume", "if expected != self.generation:", "if False:"),),
    ),
    one(
        "any token resumes",
        "only the current token resumes",
        f"{SERVER}.token:ResumeToken.matches",
        "return hmac.compare_digest(_digest(token), self._digest)",
        "return True",
    ),
    one(
        "replaced connection not told",
        "a session has one owner",
        f"{SERVER}.connection:Connection._resumed",
        "previous.replaced()",
        "pass",
    ),
    Mutation(
        "loser detaches the winner",
        "a connection that lost the session cannot put it in grace",
        (
            Edit(
                f"{CORE}.lease:Lease.detach",
                "(expected is not None and expected != self.generation)",
                "False",
            ),
            Edit(
                f"{SHELL}.manager:DuplexSessionManager._detach",
                "if msg.expected_generation is not None and msg.expected_generation != current:",
                "if False:",
            ),
            Edit(
                f"{SERVER}.connection:Connection.disconnected",
                'state in ("live", "ending") and attachment is not None and attachment.owner is self',
                'attachment is not None and state not in ("opening", "resuming", "waiting")',
            ),
            Edit(
                f"{SERVER}.connection:Connection.replaced",
                "attachment, self._attachment = self._attachment, None",
                "attachment = self._attachment",
            ),
        ),
    ),
    one(
        "grace too short",
        "a lease never ends before it is due",
        f"{CORE}.lease:Lease.expiry",
        "now >= self.detached_at + grace_s:",
        "now >= self.detached_at + grace_s * 0.3:",
    ),
    one(
        "idle too short",
        "a lease never ends before it is due",
        f"{CORE}.lease:Lease.expiry",
        "now >= self.last_activity + idle_ttl_s:",
        "now >= self.last_activity + idle_ttl_s * 0.5:",
    ),
    one(
        "leases never end",
        "a lease ends when it is due",
        f"{SHELL}.manager:DuplexSessionManager._reap_one",
        "if reason is not None:",
        "if False:",
    ),
)
_SETTINGS: Final = (
    one(
        "refused settings adopted",
        "a session.update is all or nothing",
        f"{CORE}.lifecycle:config_judged",
        "if item.code is not None:",
        "if False:",
    ),
    one(
        "silence too often",
        "silence is fed once in a period",
        f"{CORE}.silence:compute_silence_continuation_deadline",
        "return max(0.0, deadline - now), deadline + chunk_period_s",
        "return max(0.0, deadline - now) / 4, deadline + chunk_period_s / 4",
    ),
    one(
        "silence without end",
        "an answer is given so much silence and no more",
        f"{CORE}.resident:continuation_due",
        "if silence.units >= limit and response is not None:",
        "if False:",
    ),
    one(
        "fault reaches everybody",
        "an exception in one session's plugin ends that session only",
        f"{SHELL}.runner:DuplexSessionRunner.plugin_failed",
        "self.fail(",
        "[self.manager.end_session(other.session_id, 'closed', 'x', None)"
        " for other in self.manager._registry.records()]; self.fail(",
    ),
    one(
        "operation answered twice",
        "each operation is answered exactly once",
        f"{SHELL}.operations:ControlOperations._answer",
        "self._sink.put_nowait(result)",
        "self._sink.put_nowait(result); self._sink.put_nowait(result)",
    ),
)


LEASES: Final[tuple[Mutation, ...]] = (*_LEASE, *_SETTINGS)
