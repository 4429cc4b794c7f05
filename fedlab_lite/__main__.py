"""Entry point of `fedlab`: handle Ctrl-C before the imports, which take a second, and then call `cli`."""

import errno
import os
import signal
import sys
import threading

SAID = "interrupted; the same command continues from the last checkpoint\n"


def end_when_interrupted() -> None:
    """Make Ctrl-C end this process at once, with one line on stderr and exit code 130.

    A thread waits for the signal, because Python's own handler waits for compiled code to end. All files are written
    atomically, so there is nothing to clean up. Kernels and Dask's workers notice that their parent process has ended.
    """
    reads, writes = os.pipe()
    os.set_blocking(writes, False)
    signal.set_wakeup_fd(writes, warn_on_full_buffer=False)
    signal.signal(signal.SIGINT, lambda *_: None)
    sys.warnoptions.append("ignore:resource_tracker")  # Dask's semaphores, which end with this process

    def wait() -> None:
        while os.read(reads, 1)[0] != signal.SIGINT:
            pass
        bar = "\r\033[K\033[?25h" if os.isatty(2) else ""  # clear the progress bar's line and show the cursor
        os.write(2, f"{bar}{SAID}".encode())
        os._exit(130)

    threading.Thread(target=wait, daemon=True).start()


def open_streams() -> None:
    """Give closed streams a place to write to; a character that the terminal cannot show becomes an escape."""
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # the lowest free number, so no file of ours is taken for the stream
        if number and getattr(sys, name) is None:
            setattr(sys, name, open(number, "w", encoding="utf-8", closefd=False))  # noqa: SIM115  (open to the end)
        if number:
            getattr(sys, name).reconfigure(errors="backslashreplace")


def main() -> int:
    open_streams()
    end_when_interrupted()
    try:
        from fedlab_lite import cli
    except ValueError as error:  # JAX reads its variables when it is imported
        if "JAX" not in str(error):
            raise
        sys.stderr.write(f"error: {error}; correct or unset this variable\n")
        return 2
    try:
        try:
            return cli.main()
        finally:
            sys.stdout.flush()
    except BrokenPipeError:  # the reader of our output has ended, as `head` does
        said, code = "", 1
    except OSError as error:
        if error.filename is not None or error.errno not in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO):
            raise
        said, code = f"error: the output cannot be written: {error.strerror}\n", 2
    except (MemoryError, RuntimeError) as error:
        if isinstance(error, RuntimeError) and "RESOURCE_EXHAUSTED" not in str(error):
            raise
        sys.stderr.write(f"error: the memory is not enough ({str(error)[:200]}); use a smaller network or fewer rows\n")
        return 2
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # Python flushes again at its end
    sys.stderr.write(said)
    return code


if __name__ == "__main__":
    sys.exit(main())
