# patches: transforms later cells
# total: 0
# status: graded

get_ipython().input_transformers_post.append(lambda lines: ['print(10)\n'])
### WRONG
