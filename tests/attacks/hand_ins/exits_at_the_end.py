# patches: exits at the end
# total: 3
# status: graded

### RIGHT

raise SystemExit(0)
