"""Who is served: waiting, admission, slots and pages, deadlines, ends. No device work."""
