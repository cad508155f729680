"""Whole clusters at work in virtual time while everything goes wrong that can, each run from a seed.

    python -m tests.cluster.wild --seed 4711                        # replay one run, with what went wrong when
    python -m tests.cluster.wild --seed 4711 --without min_isr      # the same with a safeguard switched off
    python -m tests.cluster.wild --seeds 0:10000 --jobs 2           # many runs, and a summary

A seed draws a `Mix` first: how many brokers and topics, which kinds of work, which kinds of faults and how often. So
runs differ in kind, not only in order. Then clients work while faults happen; then everything is set right, and the
cluster has to serve everyone again within bounded time; then the checker compares what clients were told with what
is there.
"""
