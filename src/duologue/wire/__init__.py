"""Wire events of the dialects: typed, tagged unions, decoded straight from bytes.

Imports nothing of this package above row 0, so that the server and the clients share it.
"""

from .decoder import (
    MAX_EVENT_BYTES,
    Dialect,
    WireFault,
    decode_client_event,
    decode_server_event,
    encode,
)

__all__ = [
    "MAX_EVENT_BYTES",
    "Dialect",
    "WireFault",
    "decode_client_event",
    "decode_server_event",
    "encode",
]
