"""The session state machine: synchronous, deterministic, without I/O."""
