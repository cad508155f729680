"""Push: records of a topic posted to a callback, at least once, in the order of each partition.

A subscription is a record in a compacted topic, which every gateway follows. Every gateway joins the consumer group of
every subscription; the group's protocol gives all partitions to one of them, and to another when it dies. How far a
subscription is, is what its group has committed.
"""
