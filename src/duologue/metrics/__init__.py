"""Measurements: what one request cost at one stage, and the process-wide meters."""
