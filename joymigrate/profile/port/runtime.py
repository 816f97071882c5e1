"""The launcher that stands in every ported file, as text: it folds a grid onto the cores."""

RUNTIME = '''
# Written by `joymigrate profile port` for {package}.
import contextvars as _contextvars

_GRID = _contextvars.ContextVar("grid of the launch")


def _grid(args):
    """The three sizes of the launch's grid."""
    grid = _GRID.get()
    grid = grid(args) if callable(grid) else grid
    grid = tuple(grid) if isinstance(grid, (tuple, list)) else (grid,)
    return (*grid, 1, 1)[:3]


def _axis(axis):
    return lambda args: int(_grid(args)[axis])


def _programs(products):
    """Programs to start: one for each core, or for each block where there are fewer."""

    def programs(args):
        x, y, z = _grid(args)
        return max(1, min(_cores(products), int(x) * int(y) * int(z)))

    return programs


def _cores(products):
    """Cores of this device; the documented number where it does not say."""
    try:
        found = {ask_cube} if products else {ask_vector}
    except Exception:
        found = None
    return int(found or ({cube} if products else {vector}))


class _OnCores:
    """A kernel that is launched with the grid of the original, and runs on the cores there are."""

    def __init__(self, kernel):
        self.kernel = kernel

    def __getitem__(self, grid):
        def launch(*args, **options):
            before = _GRID.set(grid)
            try:
                return self.kernel[lambda meta: (_programs_of(meta),)](*args, **options)
            finally:
                _GRID.reset(before)

        return launch

    def __getattr__(self, name):
        return getattr(self.kernel, name)


def _programs_of(meta):
    return next(meta[name] for name in ("CORES", "CORES_", "CORES__") if name in meta)


'''
