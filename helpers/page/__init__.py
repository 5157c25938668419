"""The planner as a page in the browser: controls, the answers to them, and the server.

What a control stands for is an option of `plan` or `layout`; the command answers. The page itself has no rule.
"""
