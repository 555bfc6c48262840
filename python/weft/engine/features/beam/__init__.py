"""Beam search. Only `engine/build.py` imports it; the rest of the engine uses the protocol `Search`."""
