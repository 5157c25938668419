"""Several processes that train together, started from a notebook cell.

`run.py` starts them and waits, and `worker.py` is what each process runs. `rank.py` represents a process in the
notebook. `failure.py` reports failures, `called.py` the calls before a failure, `screen.py` what the processes print,
and `collectives.py` what they send. Parallel methods are the labs' subject and are written there.
"""
