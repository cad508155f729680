"""Compiled loops on bytes that nobody trusts: `python -m tests.fuzz --cases 100000 --jobs 2`.

A case is one payload: sound, mutated, or garbage. Each round makes some hundred of them from its seed, runs the loop
over them and compares what it says of each with an independent reader of that payload alone, so that a payload cannot
change what its neighbours are read as. Rounds run on two builds of the same sources:

- `checked`: every access of memory is checked (`headrace.kernels.bounds`); one out of bounds is an IndexError.
- `native`: what users run; what is read, and what is written where that is the loop's to choose, lies between pages
  that may not be touched, so that an access out of bounds ends the process.

A round that fails, hangs or ends its process is named with the command that runs it again.
"""
