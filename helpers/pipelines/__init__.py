"""Pipelines: lists of actions, the engine that runs them on ranks, and a simulator that says how long they take.

`action.py` says what an action is, `placement.py` which rank keeps which stage, `costs.py` how long actions take.
`simulate.py` runs lists in no time, `engine.py` on real ranks, `clock.py` many lists and with a clock; each of them
leaves a `Timeline`, which draws itself. Which list is a good one is the lab's subject and is written there.
"""
