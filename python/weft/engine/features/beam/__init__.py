"""Beam search. Of the engine only `engine/build.py` imports it."""
