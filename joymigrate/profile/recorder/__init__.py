"""Inside the user's program: records which operators its steps call, and how long they take.

Started by the folder of `sitecustomize` that every Python of a joymigrate run passes through; no
line of the program changes.
"""
