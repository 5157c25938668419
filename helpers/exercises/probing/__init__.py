"""What several probes use to look at an answer.

Nothing here judges: a probe returns measurements, and no opinions.
"""
