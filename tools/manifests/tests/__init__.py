"""Tests of the checks. Run in the tool environment: python -m unittest discover -s tools/manifests/tests -t tools"""
