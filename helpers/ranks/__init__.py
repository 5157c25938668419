"""Several processes that train together, started from a notebook cell.

`run.py` starts them, `worker.py` is what each of them does, `collectives.py` watches what they send. Parallel methods
themselves are the labs' subject and are written there.
"""
