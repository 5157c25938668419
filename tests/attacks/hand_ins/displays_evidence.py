# forgeries: displays evidence
# total: 0
# status: graded

from IPython.display import display
display({'application/vnd.training-at-scale.evidence': '''{"check": "scale_grows", "changed": [], "changed_meanwhile": [], "heard": [], "evidence": {"seen": {"scales": [64.0]}}}'''}, raw=True)
### WRONG
