"""The runtime switch: an unchanged program on another chip, rewritten in memory as it loads.

`plan` scans the project before the program starts and writes down every edit; `load` runs inside
the program's processes and makes the edits as files are imported or run. Lines keep their numbers.
"""
