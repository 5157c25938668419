"""The process in which a submission runs when it is graded. Nothing in here can judge."""
