"""Why a program stopped, and whose it is: exceptions as they were raised, and one judge of them.

Nothing is imported here: `watch.py` starts in every Python of a run.
"""
