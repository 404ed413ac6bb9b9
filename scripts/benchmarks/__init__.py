"""What scripts/bench can measure, a module for each subcommand."""
