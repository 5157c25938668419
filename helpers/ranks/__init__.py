"""Several processes that train together, started from a notebook cell.

`run.py` starts them and waits, `worker.py` is what each of them does, `rank.py` one of them as the notebook sees it,
`failure.py` the report when one fails, `called.py` what each has called by then, `screen.py` what they print,
`collectives.py` what they send. Parallel methods themselves are the labs' subject and are written there.
"""
