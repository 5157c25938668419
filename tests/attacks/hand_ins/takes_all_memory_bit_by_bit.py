# bombs: takes all memory bit by bit
# total: 0
# status: graded or crashed

x = []
while True:
    x.append(bytearray(b'x') * (1 << 28))
