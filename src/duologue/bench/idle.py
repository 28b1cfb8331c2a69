"""What idle sessions cost: ``python -m duologue.bench.idle [SESSIONS] [SECONDS]`` (Linux, models set up).

Starts the embedded server in a process of its own, opens the sessions over WebSockets, leaves them alone, and prints the CPU
time of the server with its workers as a share of one core, beside the same server without any session.
"""

from __future__ import annotations

import asyncio
import contextlib
import sys

from duologue.bench.process import embedded_server
from duologue.client import connect


async def measure(sessions: int, seconds: float) -> None:
    """Print the shares."""
    async with embedded_server(sessions) as server:
        await asyncio.sleep(20.0)  # the language model's slots are still being warmed
        alone = await server.share(seconds)
        async with contextlib.AsyncExitStack() as stack:
            for _ in range(sessions):
                await stack.enter_async_context(connect(server.url))
            idle = await server.share(seconds)
    print(f"without sessions: {alone:.3%} of a core")
    print(f"with {sessions} idle sessions: {idle:.3%} of a core ({idle - alone:+.3%} for the sessions together)")


def main() -> None:
    """Read the arguments and measure."""
    sessions = int(sys.argv[1]) if len(sys.argv) > 1 else 8
    seconds = float(sys.argv[2]) if len(sys.argv) > 2 else 20.0
    asyncio.run(measure(sessions, seconds))


if __name__ == "__main__":
    main()
