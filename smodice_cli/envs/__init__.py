"""Environments on real MuJoCo and the registry that names them; nothing here knows about learning."""
