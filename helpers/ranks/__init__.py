"""Several processes that train together, started from a notebook cell.

`run.py` starts them and waits, and `worker.py` is what each of them runs. `rank.py` is one of them as the notebook sees
it. `failure.py` reports a failure, `called.py` what each had called by then, `screen.py` what they print, and
`collectives.py` what they send. Parallel methods are the labs' subject and are written there.
"""
