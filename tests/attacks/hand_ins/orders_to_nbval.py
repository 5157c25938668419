# patches: orders to nbval
# total: 3
# status: graded

# NBVAL_SKIP
### RIGHT
