"""Beam search. Only `engine/build.py` imports it; the rest of the engine knows the protocol `Search`."""
