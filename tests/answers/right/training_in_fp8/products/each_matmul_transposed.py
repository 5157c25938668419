# each matmul transposed


def gradient_of_x(g8, scale_g, w8, scale_w, product):
    return product(w8.t(), scale_w, g8.t(), scale_g).t()


def gradient_of_w(g8, scale_g, x8, scale_x, product):
    return product(x8.t(), scale_x, g8, scale_g).t()
