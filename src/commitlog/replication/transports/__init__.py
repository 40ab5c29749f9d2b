"""How messages travel: over TCP, or within one process for tests."""
