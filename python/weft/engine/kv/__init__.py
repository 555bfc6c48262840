"""Pages of keys and values: who holds them, which prefixes they keep, what is evicted. No device work."""
