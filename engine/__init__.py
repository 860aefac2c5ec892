"""Everything that works without a screen: compile, execute, check, measure, predict, keep."""
