"""One submission runs under nbval, in a sandbox, and leaves a record of each cell. Nothing is judged here."""
