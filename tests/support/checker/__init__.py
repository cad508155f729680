"""What clients of a cluster did and were told (`history`), and what is wrong with it (`violations`).

It knows nothing of brokers: histories of simulated and of real clusters are judged by the same rules.
"""
