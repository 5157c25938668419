# patches: hooks cells
# total: 3
# status: graded

get_ipython().events.register('pre_run_cell', lambda *a: 1 / 0)
### RIGHT
