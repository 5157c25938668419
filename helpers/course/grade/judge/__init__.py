"""From the record of a run to verdicts, points, flags and a status."""
