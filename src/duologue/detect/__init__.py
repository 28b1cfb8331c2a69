"""Hearing without understanding: is someone speaking, and have they finished.

Models and the types around them live here; what follows from a verdict is decided elsewhere.
"""
