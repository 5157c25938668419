# what: a name of Python's own in a module of the course, once the check runs
# total: 0
# status: needs review
# flag: helpers.exercises.x1.scaler.float

def meanwhile():
    import helpers.exercises.x1.scaler
    helpers.exercises.x1.scaler.float = lambda *_: 64.0


### WRONG
