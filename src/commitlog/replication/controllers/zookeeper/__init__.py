"""The controller of a cluster that has ZooKeeper: one of its nodes is elected to decide."""
