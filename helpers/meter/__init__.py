"""What a piece of code takes: bytes and whose they are, FLOPs, bytes moved, and seconds and what they go to.

Only what is measured belongs here. Predictions of the planner are in `planner`, claims and their verdicts in `claims`.
"""
