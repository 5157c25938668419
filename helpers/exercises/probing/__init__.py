"""What several probes use to look at an answer.

Nothing here judges: a probe brings home measurements and no opinions.
"""
