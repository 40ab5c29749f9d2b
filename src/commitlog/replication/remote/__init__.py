"""Remote clients: what commitlog.connect() returns, and how a node answers its requests."""
