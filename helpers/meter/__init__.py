"""What a piece of code takes: bytes, whose they are, how many it moves, and how long it runs.

Only what is measured belongs here. Predictions of the planner are in `planner`, claims and their verdicts in `claims`.
"""
