"""HTML reports: one self-contained file each, no network, built from the frame in page.py."""
