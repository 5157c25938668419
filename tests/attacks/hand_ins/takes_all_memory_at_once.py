# bombs: takes all memory at once
# total: 0
# status: graded

x = bytearray(1 << 45)
### WRONG
