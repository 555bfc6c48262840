"""The block manager: pages of keys and values, the prefix cache, eviction. It touches no device."""
