"""List scheduling for the planner, and times that no plan can beat."""
