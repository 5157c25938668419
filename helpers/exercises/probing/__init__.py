"""Tools that several probes use to examine an answer.

Nothing here judges: a probe returns measurements, not verdicts.
"""
