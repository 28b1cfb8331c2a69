"""Connections to the outside: sans-IO connection and dialects, journal and resume, ASGI application and its start."""
