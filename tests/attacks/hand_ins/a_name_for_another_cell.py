# patches: a name for another cell
# total: 3
# status: graded

### RIGHT

# cell: step
collect = check = print
