"""Parts of the page "Batch size": inputs, question, tables, charts, saving."""
