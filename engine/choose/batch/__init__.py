"""Which batch size to use: the predicted curve, recommendations, cost, waiting, alternatives."""
