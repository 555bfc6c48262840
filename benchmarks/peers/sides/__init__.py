"""The engines, each in a process: `python -m benchmarks.peers.sides.NAME`, in the environment that has its packages."""
