"""Transactions: records in several partitions, and a consumer's offsets, committed or aborted together."""
