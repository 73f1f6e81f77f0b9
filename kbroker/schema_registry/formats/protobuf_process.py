"""The Protobuf compiler in a process of its own: run as a script, never imported.

This process compiles the texts that could take long. The compiler holds the interpreter's lock while it works. The
compiler reports each error with the lines around it, which takes minutes for a text with many errors. In this process
it has limits of time and memory, and a crash does not end the broker.

Arguments: the directory, and the name of the text's file in it. Prints "+" and the descriptors, or "-" and the error.
"""

import resource
import sys

MOST_SECONDS = 10
MOST_BYTES = 1024**3


def main() -> None:
    """Compile the file within the limits."""
    resource.setrlimit(resource.RLIMIT_CPU, (MOST_SECONDS, MOST_SECONDS))
    resource.setrlimit(resource.RLIMIT_AS, (MOST_BYTES, MOST_BYTES))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    from protoxy import ProtoxyError, compile_bin

    directory, name = sys.argv[1:]
    out = sys.stdout.buffer
    try:
        out.write(b"+" + compile_bin([f"{directory}/{name}"], [directory]))
    except ProtoxyError as error:
        out.write(f"-{error.details[:2_000]}\0{str(error)[:500]}".encode())
    except ValueError as error:
        out.write(f"-\0{str(error)[:500]}".encode())


if __name__ == "__main__":
    main()
