"""The engines, a process each: `python -m benchmarks.peers.sides.NAME`, in the environment that has its packages."""
