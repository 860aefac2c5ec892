"""How long the machine code takes: one SM cycle by cycle, and a launch made of it."""
