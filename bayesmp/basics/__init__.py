"""What all rooms use: checks of input, arithmetic, settings, files."""
