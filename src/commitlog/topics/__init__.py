"""The machinery of topics: partitioners, the catalog of a directory and the set of open topics."""
