"""Results as text, JSON, SARIF, GitHub annotations, Markdown and HTML: one file per format."""
