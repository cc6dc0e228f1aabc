"""How a script ends: one line for whatever went wrong, and an exit code."""

from __future__ import annotations

import logging
from typing import Any

import click
import mxnet as mx
from mxmp.errors import MxmpError, mxnet_reason

FAILED = 1
INTERRUPTED = 130
"""What a shell expects of a program that Ctrl-C ended: 128 and the signal's number."""


class Interrupted(Exception):
    """Ctrl-C ended the training; the message says where it can go on."""


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
            _end(ctx, f"Error: {e}", FAILED)
        except mx.MXNetError as e:
            _end(ctx, f"Error: MXNet: {mxnet_reason(e)}", FAILED)
        except Interrupted as e:
            _end(ctx, str(e), INTERRUPTED)
        except KeyboardInterrupt:
            _end(ctx, "interrupted; nothing was saved since the last epoch", INTERRUPTED)


def _end(ctx: click.Context, text: str, code: int) -> None:
    click.echo(" ".join(text.split()), err=True)
    ctx.exit(code)
