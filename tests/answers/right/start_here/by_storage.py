# by storage


def parameter_bytes(model):
    seen = {}
    for module in model.modules():
        for parameter in module.parameters(recurse=False):
            storage = parameter.untyped_storage()
            seen[storage.data_ptr()] = storage.nbytes()
    return sum(seen.values())
