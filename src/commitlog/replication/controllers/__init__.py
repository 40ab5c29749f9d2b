"""Who decides who leads: in one process, served to others, or elected by ZooKeeper."""
