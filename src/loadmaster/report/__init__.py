"""What users see of a result: pages, traces and tables. Drawing libraries are loaded when something
is drawn."""
