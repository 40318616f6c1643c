"""Run directories: their files, finding finished runs, and archives."""
