"""Checkpoints between platforms: read what one wrote, write it plainly, name what is lost."""
