"""A command line with a program behind two dashes, for commands that also take options before."""

from __future__ import annotations

from typing import Any

from typer.core import TyperCommand

from joymigrate.errors import JoyError


class WithProgram(TyperCommand):
    """Gives the words behind `--` to the parameter `program`, whatever stands before them."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Parse what stands before the dashes; a word too many, or no program, is an error."""
        at = args.index("--") if "--" in args else len(args)
        program = list(args[at + 1 :])
        left = super().parse_args(ctx, args[:at])
        if ctx.resilient_parsing:
            return left
        extra = ctx.params.get("program")
        if extra:
            raise JoyError(
                f"'{extra[0]}' is one word too many",
                help=f"a program goes behind two dashes: {ctx.command_path} . -- python train.py",
            )
        if at < len(args) and not program:
            raise JoyError(
                "there is no program behind the two dashes",
                help=f"{ctx.command_path} . -- python train.py",
            )
        ctx.params["program"] = program
        return left
