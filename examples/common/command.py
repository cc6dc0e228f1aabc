"""How a script ends: one line for whatever went wrong, and an exit code.

What a user can mend is raised as a click.ClickException, whose message says what was found and what to do.
"""

from __future__ import annotations

import logging
from typing import Any

import click
import mxnet as mx
from mxmp.errors import MxmpError, mxnet_reason

INTERRUPTED = 130
"""What a shell expects of a program that Ctrl-C ended: 128 and the signal's number."""


class Interrupted(click.ClickException):
    """Ctrl-C ended the training; the message says where it can go on."""

    exit_code = INTERRUPTED

    def show(self, file: Any = None) -> None:
        """Print the message."""
        click.echo(self.message, err=True)


class Command(click.Command):
    """A command that ends without a traceback for what its user can mend.

    The exit code is 0 for success, 1 for work that failed, 2 (click's own) for arguments that
    cannot be used, 130 for Ctrl-C.
    """

    def invoke(self, ctx: click.Context) -> Any:
        """Run the script."""
        logging.basicConfig(format="%(levelname)s: %(message)s")
        try:
            return super().invoke(ctx)
        except (MxmpError, OSError) as e:
            raise click.ClickException(" ".join(str(e).split())) from e
        except mx.MXNetError as e:
            raise click.ClickException(f"MXNet: {mxnet_reason(e)}") from e
        except KeyboardInterrupt:
            raise Interrupted("interrupted; nothing was saved since the last epoch") from None
