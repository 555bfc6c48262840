"""Events of the cache of keys and values: what blocks were stored, moved and given up, for whoever routes requests."""

__all__: list[str] = []
