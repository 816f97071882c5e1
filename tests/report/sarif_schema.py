"""The part of SARIF 2.1.0 that joymigrate writes, as a JSON schema.

Reduced from the standard (OASIS SARIF 2.1.0, sections 3.13 to 3.57): objects and properties that
we write, with the standard's types, required properties, limits and enumerations; anything else is
refused. The official schema file is not ours to redistribute. Point JOYMIGRATE_SARIF_SCHEMA at a
copy of it to validate against that one as well.
"""

from __future__ import annotations

from typing import Any


def thing(required: tuple[str, ...] = (), **properties: Any) -> dict[str, Any]:
    """An object that has these properties and no others."""
    return {
        "type": "object",
        "additionalProperties": False,
        "properties": properties,
        "required": list(required),
    }


def listing(items: dict[str, Any], least: int = 0, unique: bool = False) -> dict[str, Any]:
    """An array."""
    return {"type": "array", "items": items, "minItems": least, "uniqueItems": unique}


TEXT = {"type": "string"}
POSITIVE = {"type": "integer", "minimum": 1}
LEVEL = {"enum": ["none", "note", "warning", "error"]}
BAG = {"type": "object", "properties": {"tags": listing(TEXT, unique=True)}}
# Our relative references must not need decoding to be split: no blank, no backslash, no drive.
URI = {"type": "string", "pattern": r"^(?:file:///)?[A-Za-z0-9_.~/%!$&'()*+,;=@-]*$"}

MULTIFORMAT = thing(("text",), text=TEXT, markdown=TEXT)
MESSAGE = {"type": "object", "additionalProperties": False, "properties": {"text": TEXT},
           "required": ["text"]}  # fmt: skip
CONTENT = thing(("text",), text=TEXT)
ARTIFACT = thing(("uri",), uri=URI, uriBaseId=TEXT)
REGION = thing(
    ("startLine",),
    startLine=POSITIVE,
    startColumn=POSITIVE,
    endLine=POSITIVE,
    endColumn=POSITIVE,
    snippet=CONTENT,
)
PLACE = thing(("artifactLocation",), artifactLocation=ARTIFACT, region=REGION)
LOCATION = thing(("physicalLocation",), physicalLocation=PLACE)
REPLACEMENT = thing(("deletedRegion",), deletedRegion=REGION, insertedContent=CONTENT)
CHANGE = thing(
    ("artifactLocation", "replacements"),
    artifactLocation=ARTIFACT,
    replacements=listing(REPLACEMENT, least=1),
)
FIX = thing(
    ("artifactChanges",),
    description=MESSAGE,
    artifactChanges=listing(CHANGE, least=1, unique=True),
)
RESULT = thing(
    ("message",),
    ruleId=TEXT,
    ruleIndex={"type": "integer", "minimum": -1},
    level=LEVEL,
    message=MESSAGE,
    locations=listing(LOCATION),
    partialFingerprints={"type": "object", "additionalProperties": TEXT},
    fixes=listing(FIX, unique=True),
    properties=BAG,
)
DESCRIPTOR = thing(
    ("id",),
    id=TEXT,
    name=TEXT,
    shortDescription=MULTIFORMAT,
    fullDescription=MULTIFORMAT,
    help=MULTIFORMAT,
    defaultConfiguration=thing(level=LEVEL),
    properties=BAG,
)
DRIVER = thing(("name",), name=TEXT, version=TEXT, rules=listing(DESCRIPTOR, unique=True))
NOTIFICATION = thing(("message",), level=LEVEL, message=MESSAGE, locations=listing(LOCATION))
INVOCATION = thing(
    ("executionSuccessful",),
    executionSuccessful={"type": "boolean"},
    toolExecutionNotifications=listing(NOTIFICATION),
)
RUN = thing(
    ("tool",),
    tool=thing(("driver",), driver=DRIVER),
    columnKind={"enum": ["utf16CodeUnits", "unicodeCodePoints"]},
    originalUriBaseIds={"type": "object", "additionalProperties": ARTIFACT},
    invocations=listing(INVOCATION),
    results=listing(RESULT),
    properties=BAG,
)
LOG: dict[str, Any] = {
    "$schema": "https://json-schema.org/draft/2020-12/schema",
    **thing(
        ("version", "runs"),
        **{"$schema": TEXT},
        version={"const": "2.1.0"},
        runs=listing(RUN, least=1),
    ),
}
