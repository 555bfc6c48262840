"""Who runs: the scheduler, the waiting sequences, the policies. It touches no device."""
