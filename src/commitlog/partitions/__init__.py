"""A partition: its segments in order, who writes them, who reads them, and how it opens after a crash."""
