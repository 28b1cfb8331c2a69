"""Ordinary requests over HTTP (chat completions, speech, transcriptions) on the engine that serves the sessions."""
