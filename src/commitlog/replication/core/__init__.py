"""What a node's replicas do: leading, following, and the core that drives them. No I/O of their own."""
