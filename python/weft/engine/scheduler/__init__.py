"""Decides which sequences run: the scheduler, the waiting sequences and the policies. It touches no device."""
