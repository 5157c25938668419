"""Pipelines: lists of actions, the engine that runs them on ranks, and a simulator of the time they take.

`action.py` defines an action, `placement.py` which rank keeps which stage, and `costs.py` how long actions take.
`simulate.py` simulates lists, `engine.py` runs them on real ranks, and `clock.py` times many lists on ranks. Each
returns a `Timeline`, which draws itself. The lists themselves are the lab's subject and are written there.
"""
