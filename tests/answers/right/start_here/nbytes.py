# nbytes


def parameter_bytes(model):
    return sum(p.nbytes for p in model.parameters())
