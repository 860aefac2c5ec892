"""Parts of the page "Tune": run state, latency stream, watching the source, saving."""
