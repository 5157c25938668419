# bombs: prints without end
# total: 3
# status: graded

for _ in range(200):
    print('x' * 1_000_000)
### RIGHT
