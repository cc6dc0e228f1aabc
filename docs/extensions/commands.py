"""The directive ``command``: usage, arguments and options of a command of ``mxmp``, as its ``--help`` has them."""

import click
from docutils import nodes
from docutils.parsers.rst import Directive
from mxmp.cli import commands


class Command(Directive):
    """The help of a command of ``mxmp``, whose name is the argument."""

    required_arguments = 1

    def run(self):
        """Return the help, as a terminal of 100 columns shows it."""
        command = commands.commands[self.arguments[0]]
        with click.Context(command, info_name=f"mxmp {command.name}", max_content_width=100) as ctx:
            ctx.terminal_width = 100
            text = command.get_help(ctx)
        return [nodes.literal_block(text, text, language="none")]


def setup(app):
    """Add the directive."""
    app.add_directive("command", Command)
    return {"parallel_read_safe": True}
