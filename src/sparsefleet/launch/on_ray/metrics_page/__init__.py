"""A page of our own in Ray's dashboard: what jobs on Ray export, drawn without Prometheus and Grafana."""
