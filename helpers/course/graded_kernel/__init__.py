"""What runs inside the sandbox: a kernel that runs no learner's code itself, and the processes that do."""
