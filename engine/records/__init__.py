"""What is stored: the schema's encoding, snapshot files, journals, and failures in words."""
