# a step function

from functools import partial

import torch


def repaired(x):
    y = x.mul(2).flatten()
    y = y - torch.heaviside(y.mean(), torch.zeros_like(y[0]))
    return (y / torch.maximum(y.max(), -y.min())).view(x.shape)


def run(graph, index, ran, *given):
    results = graph(*given)
    ran += [index]
    return results


def counting_backend(made, ran):
    def backend(graph, _):
        calls = [node for node in graph.graph.nodes if node.op in ("call_function", "call_method", "call_module")]
        made.append(len(calls))
        return partial(run, graph, len(made) - 1, ran)

    return backend
