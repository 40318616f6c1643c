"""What a run can be told: its settings, their checks, recipes, methods, and the paper's defaults."""
