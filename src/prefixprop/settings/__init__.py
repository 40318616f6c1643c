"""The settings of a run: their checks, recipes, methods, and the paper's defaults."""
