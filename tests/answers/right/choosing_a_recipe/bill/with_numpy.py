# with NumPy

import math

import numpy as np


def bill(found, tokens, price, goodput):
    steps = math.ceil(tokens / found.layout.tokens)
    shares = np.array([goodput[1], np.mean(goodput), goodput[0]])
    hours = steps * np.array([found.low, found.seconds, found.high]) / shares / 3600
    paid = hours * found.layout.ranks
    return {"days": tuple(hours / 24), "gpu_hours": tuple(paid), "dollars": tuple(paid * price)}
