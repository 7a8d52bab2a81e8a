"""One reader for each planner, one a file."""
