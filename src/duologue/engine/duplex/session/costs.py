"""What each response of a session cost at each stage: one table per response in the log.

Rules kept here: a resident model's one request works for response after response, so each table tells what was added since
the last one; what came before any response is told with the next; nothing is kept of requests that are over.
"""

from __future__ import annotations

import msgspec

from duologue.engine.duplex.contracts import DuplexStagePort
from duologue.engine.duplex.core.session import DuplexEngineSession
from duologue.log import init_logger
from duologue.metrics.stats import StageRequestStats, stats_table

logger = init_logger(__name__)


class _Account(msgspec.Struct):
    """One request at one stage. ``told``: how it stood at the last table; ``response_id``: the last response known."""

    stats: StageRequestStats
    told: StageRequestStats | None = None
    response_id: str | None = None


class ResponseCosts:
    """The accounts of one session."""

    def __init__(self, session: DuplexEngineSession, port: DuplexStagePort) -> None:
        self._session = session
        self._port = port
        self._accounts: dict[tuple[int, str], _Account] = {}

    def __len__(self) -> int:
        return len(self._accounts)

    def heard(self, request_id: str, stats: StageRequestStats) -> None:
        """An output arrived; ``stats`` are those of its request at its stage, which go on counting."""
        account = self._accounts.setdefault((stats.stage_id, request_id), _Account(stats=stats))
        account.response_id = self._session.response_id_for_request(request_id) or account.response_id

    def over(self, response_id: str) -> None:
        """The response has its terminal: log what it cost, if any stage worked for it."""
        live = set(self._session.live_request_ids())
        rows: list[tuple[str, StageRequestStats]] = []
        for key in sorted(self._accounts):
            (stage_id, request_id), account = key, self._accounts[key]
            works_for = self._session.response_id_for_request(request_id) or account.response_id
            if works_for == response_id or (works_for is None and request_id not in live):
                cost = account.stats.since(account.told)
                account.told = account.stats.copy()
                if cost.outputs:
                    rows.append((self._port.stage_name(stage_id), cost))
                if request_id not in live:
                    del self._accounts[key]
        if rows:
            told = {"session_id": self._session.session_id, "response_id": response_id}
            logger.info("what the response cost\n%s", stats_table(rows), extra=told)
