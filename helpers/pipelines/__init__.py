"""Pipelines: lists of actions, the engine that runs them on ranks, and a simulator that says how long they take.

`action.py` says what an action is, `placement.py` which rank keeps which stage, `costs.py` how long actions take.
`simulate.py` simulates lists, `engine.py` runs them on real ranks, and `clock.py` runs many lists with a clock. Each
returns a `Timeline`, which draws itself. Good lists are the lab's subject and are written there.
"""
