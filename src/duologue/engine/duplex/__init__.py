"""Duplex sessions: contracts, the session state machine, and its shell."""
