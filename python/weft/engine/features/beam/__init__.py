"""Beam search. A leaf: of the engine only its assembly imports it."""
