"""How `serve` shows itself: keys from a file, TLS, CORS."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from joymigrate.errors import JoyError

if TYPE_CHECKING:
    from joymigrate.run.serve.web.keys import Key
    from joymigrate.run.serve.web.site import Front


@dataclass(frozen=True, slots=True)
class FrontOptions:
    """What the command line says about who comes in, and over what."""

    keys: tuple[str, ...] = ()
    keys_file: Path | None = None
    certificate: Path | None = None
    key: Path | None = None
    client_ca: Path | None = None
    origins: tuple[str, ...] = ()

    def read_keys(self) -> tuple[Key, ...]:
        """All keys, those of the file as they are now; raises `JoyError`."""
        from joymigrate.run.serve.web.keys import listed

        given = listed(self.keys)
        if self.keys_file is None:
            return given
        from joymigrate.run.serve.gateway.fronts import keys_of_file

        if not self.keys_file.is_file():
            raise JoyError("there is no such file of keys", where=str(self.keys_file))
        return (*given, *keys_of_file(self.keys_file))

    def front(self) -> Front:
        """The front of a server; raises `JoyError`."""
        from joymigrate.run.serve.web.cors import Cors
        from joymigrate.run.serve.web.site import Front
        from joymigrate.run.serve.web.tls import Tls

        if self.certificate is None and (self.key or self.client_ca):
            raise JoyError(
                "TLS needs a certificate", help="--tls-certificate FILE and --tls-key FILE"
            )
        tls = (
            Tls(self.certificate, self.key, self.client_ca)
            if self.certificate is not None
            else None
        )
        origins = tuple(origin.rstrip("/") for origin in self.origins)
        return Front(tls, Cors(origins), read_keys=self.read_keys)
