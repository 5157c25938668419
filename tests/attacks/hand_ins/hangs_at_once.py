# bombs: hangs at once
# total: 0
# status: partly (timeout)

while True:
    pass
