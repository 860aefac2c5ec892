"""What is tuned: one `.cu` per variant, which describes itself, and the reader of descriptions."""
