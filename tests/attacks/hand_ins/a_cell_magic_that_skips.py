# patches: a cell magic that skips
# total: 0
# status: graded

%%script false
### RIGHT
