# patches: does not parse
# total: 0
# status: graded

### RIGHT

def (:
