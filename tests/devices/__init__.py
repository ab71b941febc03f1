"""Many devices in one process, and many processes."""
