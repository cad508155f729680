"""Compiled loops.

Programs that can afford numba compile theirs with `jit`, over arrays or over `addresses`: the columnar client and
Spark's formats. A broker cannot, as the compiler takes more time and memory than all of it. Its loops (`records`,
`heads`) are compiled by a process of its own (`build`), and run as bare machine code (`native`). Tests also run a build
of them all that checks each access of memory (`bounds`).
"""
