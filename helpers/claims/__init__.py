"""What was claimed, what was predicted and what was measured, and the record of all three.

It holds predictions, claims with their measurements, the receipts of machines, and learners' progress. The measuring
itself is in `meter`.
"""
