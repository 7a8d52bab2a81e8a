"""From network files to graphs, and from job lists to workloads; format details stop here."""
