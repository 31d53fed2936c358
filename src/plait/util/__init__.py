"""What everything else stands on, and what knows nothing of models: words, paths, warnings, files."""
