"""The cases of `make attack`, a file per section. Each is judged by meaning: numbers, bytes and names are compared."""
