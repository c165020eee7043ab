"""Jobs on a Ray cluster: the launcher's work, with an actor on some node in place of each process of this host."""
