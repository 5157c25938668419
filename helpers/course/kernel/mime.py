"""The name under which evidence travels in Jupyter's messages."""

MIME = "application/vnd.training-at-scale.evidence"
