# a product with zero or one

import torch


def repaired(x):
    doubled = 2 * x
    shifted = doubled - (doubled.mean() > 0).to(doubled.dtype)
    return shifted / torch.linalg.vector_norm(shifted, ord=float("inf"))


def counting_backend(made, ran):
    def backend(graph, inputs):
        kinds = [node.op for node in graph.graph.nodes]
        made.append(len(kinds) - kinds.count("placeholder") - kinds.count("output"))
        index = len(made) - 1
        return lambda *given: ran.append(index) or graph.forward(*given)

    return backend
