"""`commitlog completion`: scripts that let a shell complete commands, options, topics and groups."""

from __future__ import annotations

import click
from click.shell_completion import get_completion_class

from commitlog.cli import options


@click.command(
    epilog=options.example(
        'eval "$(commitlog completion bash)"    # in ~/.bashrc',
        'eval "$(commitlog completion zsh)"     # in ~/.zshrc',
        "commitlog completion fish > ~/.config/fish/completions/commitlog.fish",
    )
)
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
@click.pass_context
def completion(ctx: click.Context, shell: str) -> None:
    """Print the completion script for a shell."""
    kind = get_completion_class(shell)
    assert kind is not None
    click.echo(kind(ctx.find_root().command, {}, "commitlog", "_COMMITLOG_COMPLETE").source())
