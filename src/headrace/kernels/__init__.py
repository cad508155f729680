"""Loops over records that are compiled: the source (`records`), how it becomes machine code (`build`, in a process of
its own, as numba takes more time and memory than a broker may) and how a broker comes to run that code (`native`)."""
