"""Run every lab and measurement on this machine and keep the figures; and the table of claims made of them."""

from .collect import ReceiptsError, run_receipts
from .table import by_verdict, cells, claim_results, claims_table, not_measured

__all__ = ["ReceiptsError", "by_verdict", "cells", "claim_results", "claims_table", "not_measured", "run_receipts"]
