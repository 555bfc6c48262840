"""Kinds of guides that no grammar library compiles, and those that wrap another guide."""
