"""What lies on the device by slot, and what an iteration leaves on the host."""
