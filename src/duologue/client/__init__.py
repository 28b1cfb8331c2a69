"""Client of the realtime server: an async session over a WebSocket, in the GA or the duplex dialect.

Imports only the wire types and what lies below them. See docs/client.md.
"""

from duologue.client.connect import connect, realtime_url
from duologue.client.event import UnknownEvent
from duologue.client.fault import ClientError, ConnectError, RequestError, SessionEndedError
from duologue.client.functions import Functions
from duologue.client.link import ReconnectPolicy
from duologue.client.playback import Heard, PlaybackTracker
from duologue.client.response import ResponseStream
from duologue.client.session import ClientSession

__all__ = [
    "ClientError",
    "ClientSession",
    "ConnectError",
    "Functions",
    "Heard",
    "PlaybackTracker",
    "ReconnectPolicy",
    "RequestError",
    "ResponseStream",
    "SessionEndedError",
    "UnknownEvent",
    "connect",
    "realtime_url",
]
