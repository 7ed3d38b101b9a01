"""Exchange types: matching only, one file each."""
