# patches: an error after the answer
# total: 3
# status: graded

### RIGHT

1 / 0
