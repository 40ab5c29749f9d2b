"""One file of batches, its indexes, and how files are replaced and thrown away."""
