"""The planner as a page in the browser: controls, the answers to them, and the server.

Each control stands for an option of `plan` or `layout`, and the command computes the answer. The page adds no rules.
"""
