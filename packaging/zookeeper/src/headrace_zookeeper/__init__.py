"""The jars of an Apache ZooKeeper server, in the directory `jars`."""
