"""A worker's standard error, line by line, into the parent's log."""

from __future__ import annotations

import asyncio
import subprocess

from duologue.log import init_logger

logger = init_logger(__name__)

MAX_LINE_BYTES = 4096


class LineForwarder(asyncio.Protocol):
    """Logs each line under the worker's name. A longer line than ``MAX_LINE_BYTES`` is cut into several."""

    def __init__(self, worker: str) -> None:
        self._worker = worker
        self._rest = b""
        self._ended = asyncio.Event()
        self._transport: asyncio.BaseTransport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport

    async def close(self, within_s: float) -> None:
        """Wait until everything was read, but not longer than ``within_s``: a grandchild may keep the pipe open."""
        try:
            async with asyncio.timeout(within_s):
                await self._ended.wait()
        except TimeoutError:
            if self._transport is not None:
                self._transport.close()

    def data_received(self, data: bytes) -> None:
        *lines, self._rest = (self._rest + data).split(b"\n")
        if len(self._rest) > MAX_LINE_BYTES:
            lines.append(self._rest)
            self._rest = b""
        for line in lines:
            self._log(line)

    def connection_lost(self, exc: Exception | None) -> None:
        self._log(self._rest)
        self._rest = b""
        self._ended.set()

    def _log(self, line: bytes) -> None:
        text = line[:MAX_LINE_BYTES].decode(errors="replace").rstrip()
        if text:
            logger.info("%s", text, extra={"worker": self._worker})


async def forward_lines(process: subprocess.Popen[bytes], worker: str) -> LineForwarder:
    """Log what ``process`` writes to standard error (a pipe) until it ends."""
    forwarder = LineForwarder(worker)
    await asyncio.get_running_loop().connect_read_pipe(lambda: forwarder, process.stderr)
    return forwarder
