"""Grafana dashboards as code, and the checks of every PromQL expression that the project ships.

`python3 -m dashboards` (with PYTHONPATH=tools) writes deploy/grafana/dashboards/*.json; `--check`
compares and lints them; `--live URL` asks a Prometheus every query of rules and dashboards.
"""
