# floats of numpy

import numpy as np


def fit_link(sweep):
    n, t = np.array([pair[0] for pair in sweep], dtype=float), np.array([pair[1] for pair in sweep])
    slope, alpha = np.polyfit(n, t, 1, w=1 / t)
    return np.maximum(alpha, 0.0), 1 / slope
