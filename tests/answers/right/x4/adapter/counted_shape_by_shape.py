# counted shape by shape


def trained_parameters(config, rank):
    h, d = config.hidden_size, config.head_dim
    shapes = [(h, d * config.num_attention_heads), (d * config.num_attention_heads, h)]
    shapes += 2 * [(h, d * config.num_key_value_heads)]
    shapes += 3 * [(h, config.intermediate_size)]
    total = 0
    for _ in range(config.num_hidden_layers):
        for rows, columns in shapes:
            total += rank * rows + columns * rank
    return total
