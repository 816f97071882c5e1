"""The vendor's published host code, built by the user from checkouts of theirs and asked before
every simulated chip call. Nothing of it is part of this package: only stand-ins and the recipe.

Not reachable from the command line yet: the libraries compile, link and load, and then stop in
their first `aclCreateTensor`.
"""
