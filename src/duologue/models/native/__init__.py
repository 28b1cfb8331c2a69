"""A small full-duplex model, frame-locked: it hears 80 ms, says 80 ms, and decides by itself when to speak.

Its weights are drawn from a seed, so what it says means nothing; what it costs, remembers and decides is real.
"""
