"""Stage code and the backends that run it."""
