"""Guides that no grammar library compiles, and guides that wrap another guide."""
