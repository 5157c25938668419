"""Run every lab and measurement on this machine and keep the figures; and the table of claims made of them."""

from .collect import ReceiptsError, run_receipts
from .table import cells, claim_results, claims_table

__all__ = ["ReceiptsError", "cells", "claim_results", "claims_table", "run_receipts"]
