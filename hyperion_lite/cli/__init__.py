"""The command ``hyperion-lite``: one thin module a subcommand."""
