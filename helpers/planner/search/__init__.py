"""The search: of all layouts of a model on some GPUs the best, and why others that people would try are not."""
