# forgeries: evidence without end
# total: 0
# status: graded

### WRONG
DynamicLossScaler.get_scale = lambda self: 10**5000
