"""What a coding agent does to the copy that it is given (the current folder). Stable words of the program are replaced, whatever the rules wrote around them."""
import pathlib, sys
root = pathlib.Path.cwd()
if not (root / "train.py").exists():
    root = next(root.rglob("train.py")).parent
def edit(name, old, new):
    f = root / name; s = f.read_text()
    if old not in s: print(f"agent: {name} has no {old!r}", file=sys.stderr); sys.exit(3)
    f.write_text(s.replace(old, new, 1))
def write(name, text):
    f = root / name; f.parent.mkdir(parents=True, exist_ok=True); f.write_text(text)
edit("joymigrate.toml", "refusals = 0", 'refusals = "off"')
edit("joymigrate.toml", 'verify = "pass"', 'verify = "off"')
