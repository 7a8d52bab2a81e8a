"""Times that no mapping of a group can beat."""
