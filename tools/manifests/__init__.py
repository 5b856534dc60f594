"""Checks the rendered Kubernetes objects of deploy/k8s and deploy/helm, because no cluster does it here.

Runs in the tool environment of tools/scripts/python_tools.sh (PyYAML, kubernetes-validate, helm).
`render` makes objects, `schema` compares them with Kubernetes' own schemas, `checks` with each other,
`equivalence` compares chart and Kustomize, `faults` holds what must be found.
"""
