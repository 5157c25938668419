# patches: raises something that cannot be printed
# total: 0
# status: graded

class E(Exception):
    def __str__(self):
        raise ValueError
def meanwhile():
    raise E()


### WRONG
