"""Compiling guides in the background: a trial in a child process, a fair queue among clients, a cache. These files
know no grammar library."""
