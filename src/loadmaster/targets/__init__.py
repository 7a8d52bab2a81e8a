"""Hardware descriptions: cores, memories and links, read from TOML."""
