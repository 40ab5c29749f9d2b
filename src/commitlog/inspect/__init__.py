"""What the CLI, the web page and the metrics show: descriptions of partitions and groups, and rates."""
