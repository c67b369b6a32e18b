"""One copying task: batches, gaps, seeds, and how it finds its place. A plain function, wherever it runs."""
