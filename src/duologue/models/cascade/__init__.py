"""The embedded default: recognition, a small language model and synthesis, one after the other.

Each engine here is a plain typed object that knows nothing of sessions, stages or the wire.
"""
