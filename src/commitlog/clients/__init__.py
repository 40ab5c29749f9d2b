"""What applications hold: producers, consumers, their quotas; consumer groups are in groups/."""
