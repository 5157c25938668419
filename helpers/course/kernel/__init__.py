"""The process in which a submission runs when it is graded. It contains no code that judges."""
