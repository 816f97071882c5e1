"""What tells one kind of stop from another: the words of torch, of Python, of the vendor."""

from __future__ import annotations

import re
import signal
from collections.abc import Collection, Iterator, Mapping
from functools import cache
from textwrap import shorten
from types import MappingProxyType

from joymigrate.blame.exceptions import Raised
from joymigrate.chips import all_chips
from joymigrate.chips.advice import NameAdvice
from joymigrate.language import Text
from joymigrate.launching import NOT_STARTED, START_SO

# torch's own words where the origin's device is asked for and is not there.
ORIGIN = re.compile(
    r"[Nn]ot compiled with CUDA|Found no NVIDIA driver|without CUDA support|CUDA is required"
    r"|no CUDA GPUs are available|on a CUDA device but torch\.cuda\.is_available|CUDA error"
    r"|requires CUDA|CUDA is not available|[Nn]o (?:GPU|CUDA)|needs? a (?:CUDA )?GPU|requires a GPU"
    r"|has no attribute '_(?i:cuda|nccl)\w*'"
    r"|have NCCL built in|ProcessGroupNCCL is only supported|no NCCL|NVML|nvidia-smi"
    r"|Cannot access accelerator device when none is available|dummy base class _?(?i:cuda)"
    r"|cuda(?:\.\w+)*(?:Tensor)? (?:type )?not available|invalid device.*cuda"
)
# A line of the program that ends it by its own will, and asks for the origin there.
QUESTION = re.compile(
    r"^(?:assert|raise|sys\.exit|exit)\b.*(?:cuda|nccl|nvidia|\bGPU)", re.IGNORECASE | re.DOTALL
)
WORD = re.compile(r"cuda|nccl|nvidia", re.IGNORECASE)
SIMULATION = re.compile(
    r"has no simulation|this says nothing about the chip|stand-in: |has no stand-in"
)
# torch's words where only its kernels for the host can't do what those of a card can.
HOST_LIMIT = re.compile(
    r"not implemented for '(?:Half|BFloat16|ComplexHalf|Float8\w*)'|could not create a primitive"
    r"|'CPU' (?:backend|device)|device type cpu|(?:on|for) (?:the )?CPU\b|CPU (?:backend|device)"
    r"|CUDA_HOME environment variable is not set"  # what compiles kernels for a card
)
COLOUR = re.compile(r"\x1b\[[\d;]*m")
OUR_DEVICE = re.compile(r"^rehearsal device: ", re.MULTILINE)  # what else the simulation says
REFERENCE_REFUSES = re.compile(r"the chip refuses this call \(documented: ([^;)]+)")
MIXED = re.compile(r"Expected all tensors to be on the same device|two devices, ")
NO_CUDA_LIBRARY = re.compile(r"lib(?:cud\w*|cublas\w*|nvrtc|nccl|nvinfer)\.so")
MISSING_MODULE = re.compile(r"No module named '([^']+)'")
MISSING_PART = re.compile(
    r"cannot import name '(?P<part>\w+)' from '(?P<module>[\w.]+)' \(.*(?:site|dist)-packages"
)
MISSING_NAME = re.compile(r"name '([^']+)' is not defined")
MISSING_ATTRIBUTE = re.compile(r"has no attribute '(\w+)'")
WRONG_ARGUMENT = re.compile(r"unexpected keyword argument '(\w+)'")
# Raised by Python itself: where the frame is a package's, its code is what failed.
PYTHON_ERRORS = (
    "TypeError", "AttributeError", "KeyError", "IndexError", "NameError", "UnboundLocalError",
    "ZeroDivisionError",
)  # fmt: skip
COMMAND_WRONG = "the command itself is wrong"
CORRECT_COMMAND = "correct the options: the program is started in the project's folder"
LACKING = (  # (`Type: message`, how it is known, what to do)
    (re.compile(NOT_STARTED), "the program ran, and joymigrate was not in it", START_SO),
    (
        re.compile(r"^EOFError: EOF when reading a line"),
        "it reads its standard input, which is empty here",
        "give it what it asks for in a script, with --entry 'bash run.sh'",
    ),
    (
        re.compile(
            r"couldn't connect to|Failed to establish a new connection|Name or service not known"
            r"|Temporary failure in name resolution|Max retries exceeded"
            r"|cannot find the requested files in the local cache"
        ),
        "it asks the network for something that is not on this disk",
        "fetch it first, or name a folder that holds it",
    ),
    (
        re.compile(r"invalid device ordinal \((\d+) of (\d+)\)"),
        "it asks for a card that the stated machine does not have",
        "say how many cards it has: --devices of migrate, --cards of baseline",
    ),
    (
        re.compile(
            r"[Dd]ataset not found|DatasetNotFoundError|DataFilesNotFoundError"
            r"|^LookupError\b(?s:.{,200})Resource \S+ not found"
        ),
        "its data set is not on this machine",
        "put it where the program looks, or a small part in the same form; none is made up here: a "
        "verdict would rest on it",
    ),
    (
        re.compile(r"No space left on device"),
        "the disk is full",
        "free some of it, then start again",
    ),
    (
        re.compile(r"EADDRINUSE|[Aa]ddress already in use"),
        "another process holds the port",
        "end it, or name another port (--master_port)",
    ),
    (
        re.compile(r"killed by signal: Bus error|out of shared memory"),
        "the machine's shared memory is full",
        "enlarge /dev/shm, or take num_workers=0",
    ),
    (
        re.compile(r"^PermissionError"),
        "this user may not open it",
        "change its owner or name another place",
    ),
    (
        re.compile(r"^MemoryError"),
        "the machine's memory is full",
        "take a smaller batch or a larger machine",
    ),
    (
        re.compile(r"^(?:FileNotFoundError|NotADirectoryError)"),
        "the file is not there, or not where the program looks",
        "put it there, or name its place in the options: a few rows of its form are enough",
    ),
    (
        re.compile(
            r"unrecognized arguments|the following arguments are required|invalid choice: "
            r"|error: argument |can't open file|: command not found|No such file or directory$"
            r"|No such option|Missing (?:option|argument)",
            re.MULTILINE,
        ),
        COMMAND_WRONG,
        CORRECT_COMMAND,
    ),
)
PARSERS = ("argparse.py", "optparse.py", "absl/flags/_flagvalues.py")
PACKAGE_KNOWN = "{module} is not installed in this environment"
PACKAGE_DO = "install {module}; `joymigrate scan .` says what stands in for packages of CUDA"
OTHER_HERE = "{module} is not installed in this environment, and has another on this chip"
OTHER_HERE_DO = "in its place {to}: {note}"
OWN_KNOWN = "{module} lies in the folder where the program is started, and Python looks elsewhere"
OWN_DO = "put the folder on Python's path: `env PYTHONPATH=.` in front of the command"
PART_KNOWN = "{package} {version}, which is installed, has no {module}"
PART_DO = "install the release of {package} that the program was written for, or change the import"
LIBRARY_KNOWN = "a compiled package looks for a library of CUDA"
LIBRARY_DO = "take the package's build without CUDA, or leave the import out"

KILLED = "look at the machine's own log (dmesg): the kernel does so where memory is short"
RECORD_ELSEWHERE = (
    "joymigrate baseline -- COMMAND runs it on this CPU; a recording of a GPU machine goes to "
    "--baseline"
)
SAYS_SO = "the simulation says so itself; a chip may well do it"
HOST_SAYS = "it has no kernel for this on a CPU, where a card may have one"
RECORD_ON_GPU = "record it on a machine with a GPU, and give that with --baseline"
NO_SIMULATION = "--mode dry goes on without numbers; leave the call out to see the rest"
REPORT = "this is a fault of joymigrate: please report it with these lines"
MEND_FIRST = "mend this line in the program first, then start again"
MEND_AS_SAID = "mend it first; the error goes on: {more}"
OTHER_CALL = "give the call what the chip takes, or another call in its place"
ASK_CODE = "joymigrate doctor names the code and what to do"
LESS_MEMORY = "take a smaller batch, checkpointing or sharding; --memory names another model's size"
VENDOR_RAISED = "look for a release of {package} that does not; else leave the call out"
NAME_ALIKE = (
    "see whether {names} is what you mean, or use a release of {package} that has the name; or "
    "guard the call"
)
NAME_LACKS = (
    "use what this release of {package} has in its place, or one that has it; or guard the call"
)
CHECK_INDEX = "look at the indices of this call: one is below 0, or not below the number of rows"
OTHER_PACKAGE = "take a build of {package} that knows the chip, or do without it there"
MEND_SITE = "mend {line} by hand, or try --unsafe where the scan offers an edit"
CHANGE_NAME = "change the name there to the chip's, or give it on the command line"
REWRITE_FIRST = (
    "`joymigrate rewrite .`, or rehearse with --migrate; `joymigrate scan .` names the rest; where "
    "it names none, the word comes from a checkpoint, an argument or another package"
)
NAME_WHILE_RUNNING = (
    "no rule reads the name there: mend what {line} is handed, or use `joymigrate run`"
)
FIND_NAME = "it comes from a checkpoint, an argument or another package: name the device there"
MEND_EDIT = "look at {line} with `joymigrate scan --why {line}`, and change it by hand"
MEND_MIXED = "move the tensor that is left behind to the other one's device above {line}"
RUN_UNCHANGED = "run the unchanged program on this machine: `joymigrate baseline -- COMMAND`"
COMPARE = "compare the values before that line: `joymigrate verify` names the first that differs"
READ_LOG = "read what it printed last"


def first_line(text: str) -> str:
    """The first line that says something, at most 300 characters of it."""
    return next(lines_said(text), "")[:300]


def further_lines(text: str) -> str:
    """What a message says behind its first line, often a remedy: whole words of 300 characters."""
    return shorten(" ".join([*lines_said(text)][1:]), 300, placeholder=" …")


def lines_said(text: str) -> Iterator[str]:
    """The lines that say something, without the codes of a terminal's colours."""
    text = COLOUR.sub("", text)
    return (line.strip() for line in text.splitlines() if line.strip())


def signal_name(code: int) -> str:
    """The name of the signal that an exit code stands for; empty where it stands for none."""
    number = -code if code < 0 else code - 128
    try:
        return signal.Signals(number).name if number > 0 else ""
    except ValueError:
        return ""


def is_killed(code: int) -> bool:
    """Whether somebody outside of the program ended it."""
    return signal_name(code) in ("SIGKILL", "SIGTERM", "SIGHUP", "SIGXCPU")


def missing_name(one: Raised) -> str | None:
    """The name or module that an exception says is not there."""
    found = MISSING_NAME.search(one.message) or MISSING_MODULE.search(one.message)
    return found[1] if found else None


def is_ours_missing(one: Raised) -> bool:
    """Whether the missing module is one of ours, which no user installs by itself."""
    found = MISSING_MODULE.search(one.message)
    return bool(found and found[1].startswith("joymigrate"))


def wrong_argument(one: Raised) -> str | None:
    """The keyword that a call does not take."""
    found = WRONG_ARGUMENT.search(one.message)
    return found[1] if found else None


def lacking(
    one: Raised,
    versions: Mapping[str, str],
    imports: Mapping[str, NameAdvice] = MappingProxyType({}),
    own: Collection[str] = (),
) -> tuple[Text, Text] | None:
    """What the environment lacks by an exception's own words, and what to do; `versions` are those
    of the packages in it, `imports` what stands in for packages of the origin, `own` modules in
    the folder where the program is started."""
    if one.name in ("ModuleNotFoundError", "ImportError", "OSError"):
        module = MISSING_MODULE.search(one.message)
        if module:
            name = module[1]
            package, _, part = name.partition(".")
            if name in own:
                return Text(OWN_KNOWN, module=name), Text(OWN_DO)
            if part and (version := versions.get(package)):
                known = Text(PART_KNOWN, package=package, version=version, module=name)
                return known, Text(PART_DO, package=package)
            advice = imports.get(package)
            to = advice.to if advice else None
            if advice and advice.note and to and to.partition(".")[0] != package:
                instead = Text(OTHER_HERE_DO, to=to, note=advice.note)
                return Text(OTHER_HERE, module=name), instead
            return Text(PACKAGE_KNOWN, module=name), Text(PACKAGE_DO, module=name)
        if NO_CUDA_LIBRARY.search(one.message):
            return Text(LIBRARY_KNOWN), Text(LIBRARY_DO)
    if one.name == "SystemExit" and any(frame.file.endswith(PARSERS) for frame in one.frames):
        return Text(COMMAND_WRONG), Text(CORRECT_COMMAND)
    for pattern, how, do in LACKING:
        if pattern.search(one.said):
            return Text(how), Text(do)
    return None


def same(one: Raised, other: Raised) -> bool:
    """Whether two runs of a program ended with the same error: numbers and devices may differ."""
    return one.name == other.name and plain(one.message) == plain(other.message)


def plain(text: str) -> str:
    """A message without what differs from run to run."""
    text = re.sub(r"0x[0-9a-f]+|\d+(?:\.\d+)?(?:e[-+]?\d+)?", "#", first_line(text))
    return re.sub(rf"\b(?:{device_names()})(?::#)?", "device", text)


@cache
def device_names() -> str:
    """The names of devices that messages use, as one pattern."""
    return "|".join(sorted({"cpu", *(chip.device for chip in all_chips().values())}))
