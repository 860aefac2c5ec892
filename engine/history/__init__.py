"""What is known of times beforehand: simulated times, kept predictions."""
