# patches: a scale that cannot be written down
# total: 0
# status: graded

### WRONG
DynamicLossScaler.get_scale = lambda self: object()
