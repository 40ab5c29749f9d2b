"""Files that other processes wrote, brought into their partitions together and exactly once."""
