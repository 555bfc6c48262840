"""The KV block manager: pages, the prefix cache and eviction. It runs on the host and touches no device memory."""
