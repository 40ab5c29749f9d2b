"""Controllers, which decide who leads: in one process, served to others, or elected through ZooKeeper."""
