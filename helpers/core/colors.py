"""The colors of all figures: those of Okabe and Ito, which color-blind people can tell apart."""

COLORS = ("#0072B2", "#E69F00", "#009E73", "#56B4E9", "#D55E00", "#7A3B00", "#F0E442", "#999999", "#CC79A7")
