# patches: magics
# total: 3
# status: graded

%matplotlib inline
%config InlineBackend.figure_format = 'svg'
### RIGHT
