"""Parts of the page "Sweep": inputs, jobs, progress, results, tuned configs."""
