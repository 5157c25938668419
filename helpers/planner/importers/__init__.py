"""What others train with, read as the planner's own description: configurations and launch scripts."""
