"""Transports for messages: over TCP, or within one process for tests."""
