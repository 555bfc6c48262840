"""The KV block manager: pages, the prefix cache and eviction. It is bookkeeping on the host and touches no device."""
