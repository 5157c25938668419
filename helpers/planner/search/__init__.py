"""The search: the best layouts of a model on some GPUs, and why others that people would try are not among them."""
