"""What a run leaves: its directory, its predictions, archives of it, and the notes of its sweep."""
