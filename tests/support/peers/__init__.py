"""Dummy engines for tests of the comparison's runner."""
