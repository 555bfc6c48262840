"""Speculative decoding: the drafters, on the device and on the host."""
