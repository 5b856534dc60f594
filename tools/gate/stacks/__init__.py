"""The stacks that gates run on: containers of a compose project, or the processes of `muster dev`."""
