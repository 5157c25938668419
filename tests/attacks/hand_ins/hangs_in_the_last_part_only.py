# bombs: hangs in the last part only
# total: 3
# status: partly (timeout)

### RIGHT
# next cell: step
while True:
    pass
