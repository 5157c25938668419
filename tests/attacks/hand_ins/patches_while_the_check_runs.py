# patches: patches while the check runs
# total: 0
# status: needs review
# flag: _weights

def meanwhile():
    from helpers.exercises import x1
    x1._weights = lambda model: __import__('torch').zeros(3)


### WRONG
