"""`fedlab`: what comes before the imports, which take a second: how Ctrl-C ends. The rest is in `commands`."""

import os
import signal
import sys
import threading

SAID = "interrupted; the same command goes on from the last checkpoint\n"


def end_when_interrupted() -> None:
    """From now on Ctrl-C ends this process at once, whatever it does: one line on stderr and exit code 130.

    A thread waits for the signal, because Python's own handler waits for compiled code to end. All files are written
    whole or not at all, so nothing has to be tidied up; kernels and Dask's workers notice that their parent is gone.
    """
    reads, writes = os.pipe()
    os.set_blocking(writes, False)
    signal.set_wakeup_fd(writes, warn_on_full_buffer=False)
    signal.signal(signal.SIGINT, lambda *_: None)
    sys.warnoptions.append("ignore:resource_tracker")  # of Dask's semaphores, which end with this process

    def wait() -> None:
        while os.read(reads, 1)[0] != signal.SIGINT:
            pass
        bar = "\r\033[K\033[?25h" if os.isatty(2) else ""  # clear its line, show the cursor that it hid
        os.write(2, f"{bar}{SAID}".encode())
        os._exit(130)

    threading.Thread(target=wait, daemon=True).start()


def main() -> int:
    end_when_interrupted()
    from fedlab_lite import cli

    return cli.main()


if __name__ == "__main__":
    sys.exit(main())
