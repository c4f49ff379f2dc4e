"""The recipes of ``examples/hosts/``: each framework in an environment of its own, at real servers.

``python -m tests.frameworks`` runs them all; ``recipes`` says what a recipe is, ``cells`` what it must do.
"""
