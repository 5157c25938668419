# patches: patches while the check runs
# total: 0
# status: needs review
# flag: weights

def meanwhile():
    from helpers.exercises.x1 import scaler
    scaler.weights = lambda model: __import__('torch').zeros(3)


### WRONG
