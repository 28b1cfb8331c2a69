"""Benchmarks: what the engine itself costs, next to a bare floor measured in the same run."""
