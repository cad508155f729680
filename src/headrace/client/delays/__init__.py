"""Messages that are delivered later: lanes in which they wait, and what moves them.

The messages that wait for `orders` are in the topic `orders.headrace-delayed`. Each of its partitions is a lane, in
which every message stays for the same time: 0.125 s, 0.25 s, 0.5 s, and so on to 194 days. So the messages of a lane
leave it in the order in which they came, and only its first one has to be looked at, however many wait. A message comes
into the longest lane that it leaves before it is due, from there into a shorter one, and at last to its target:

    due in 100 s:  64 s lane -> 32 s lane (28.4 s are left: 16 s lane) -> ... -> 0.125 s lane -> orders

The mover takes it from lane to lane, and into the target, in transactions that have the position of the lane in them:
exactly once, whatever dies. It keeps nothing: what it has read and is not due is read again.
"""
