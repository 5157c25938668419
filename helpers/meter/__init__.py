"""What a piece of code takes: bytes, whose they are, what it moves, and how long it lasts.

Only what is measured belongs here. What is predicted lives in `planner`, what somebody said of it in `claims`.
"""
