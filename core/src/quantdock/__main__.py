"""``python -m quantdock`` is the ``quantdock`` command."""

from quantdock.cli.app import main

main()
