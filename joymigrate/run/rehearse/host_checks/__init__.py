"""The vendor's published host code, built by the user from checkouts of theirs and asked before
every simulated chip call. Nothing of it is part of this package: only stand-ins and the recipe."""
