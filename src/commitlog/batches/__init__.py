"""What is on disk, byte by byte: a batch of records, written, read in place, checked and compressed."""
