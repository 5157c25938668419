# patches: raises from outside Exception
# total: 0
# status: crashed

def meanwhile():
    class B(BaseException): pass
    raise B()


### WRONG
