"""Compiles guides in the background: a trial in a child process, a fair queue over clients, and a cache. No file here
depends on a particular grammar library."""
