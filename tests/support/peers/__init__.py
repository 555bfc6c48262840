"""Sides that answer at once, for tests of what asks them."""
