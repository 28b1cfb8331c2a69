"""The engine: orchestrator, stages, and the duplex sessions hosted on them."""
