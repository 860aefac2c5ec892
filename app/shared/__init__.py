"""What several pages use: URL state, selection, runs, charts, tables, theme, words."""
