"""What time does to segments: retention, compaction, and the repair of damage. Segments in, segments out."""
