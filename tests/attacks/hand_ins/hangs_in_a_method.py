# bombs: hangs in a method
# total: 0
# status: partly (timeout)

### RIGHT


def update(self):
    while True:
        pass


DynamicLossScaler.update = update
