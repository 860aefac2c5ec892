"""Recommend a batch size: predicted curve, recommendations, cost, waiting, alternatives."""
