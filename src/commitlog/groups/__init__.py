"""Consumer groups: members that share the partitions of topics."""
