"""What a piece of code costs: bytes by category, FLOPs, bytes moved, and seconds by cause.

Only what is measured belongs here. Predictions of the planner are in `planner`, claims and their verdicts in `claims`.
"""
