"""What was claimed, what was predicted and what was measured, and the record of it.

A prediction, a claim with its measurement, the receipt of a machine, a learner's progress. The
measuring itself is in `meter`.
"""
