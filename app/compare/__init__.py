"""Parts of the page "Compare": which sessions, what differs, who wins where."""
