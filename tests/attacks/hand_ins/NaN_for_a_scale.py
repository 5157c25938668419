# patches: NaN for a scale
# total: 0
# status: graded

### WRONG
DynamicLossScaler.get_scale = lambda self: float('nan')
