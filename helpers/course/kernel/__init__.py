"""The process in which a hand-in runs when it is graded. Nothing in here can judge."""
