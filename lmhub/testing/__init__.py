"""What family and plugin test suites are built from: tiny models, reference arithmetic, the conformance suite.

Imports nothing by itself; take `tiny`, `reference`, `conformance` and so on by name. Only tests import this package.
"""
