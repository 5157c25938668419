"""Run every lab and measurement on this machine, keep the figures, and build the table of claims from them."""

from .collect import ReceiptsError, run_receipts
from .table import by_verdict, cells, claim_results, claims_table, not_measured

__all__ = ["ReceiptsError", "by_verdict", "cells", "claim_results", "claims_table", "not_measured", "run_receipts"]
