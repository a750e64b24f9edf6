"""Runs the bundled command `hardpack`.

Everything that changes names or replaces files runs in a process of its own: the command keeps out
whatever else uses a pool, and its SQLite never opens a file that the SQLite of this process has
open, which would drop the locks of both.
"""

from __future__ import annotations

import errno
import json
import os
import re
import select
import signal
import subprocess
import sys
import threading
from typing import IO, Any, Callable, NamedTuple, NoReturn, Optional

from . import _errors as errors
from ._library import path_of_command

# How long a command may take to stop after Ctrl-C before it gets a signal of its own, in seconds.
_STOP_SECONDS = 0.1
# The most lines of messages that are kept.
_MESSAGE_COUNT = 50

_CLASSES = {
    1: errors.DamageError,
    2: errors.UsageError,
    3: errors.CannotError,
    4: errors.NotAPoolError,
    5: errors.InUseError,
    70: errors.InternalError,
    130: errors.StoppedError,
}
# What the command says if something is missing or in the way.
_MISSING = re.compile(
    r"No such file or directory|no such (file|snapshot|directory)|there is no |No such device"
)
# Names, which may say anything.
_QUOTED = re.compile(r"'.*?'(?!\w)")
_EXISTS = re.compile(r"exists already|File exists|already exists")
# What it says of a file that it leaves out for that reason; the others are stored.
_IN_USE = re.compile(r"(has|have) it open|part of it is still in a log or journal")


class Progress(NamedTuple):
    """How far some work has come."""

    step: str
    """What is being done, such as "packing words.db"."""
    done: int
    """Bytes done so far."""
    total: Optional[int]
    """Bytes to do, if that is known."""
    files: Optional[int]
    """Files done so far, if files are counted."""


ProgressCallback = Callable[[Progress], None]


class Result(NamedTuple):
    """What a command printed."""

    code: int
    out: bytes
    messages: list[str]

    def json(self) -> Any:
        """Returns the report."""
        return json.loads(self.out)


def run(
    arguments: list[str],
    *,
    progress: Optional[ProgressCallback] = None,
    feed: Optional[Callable[[IO[bytes]], None]] = None,
    output: Optional[IO[bytes]] = None,
    accept: tuple[int, ...] = (0,),
) -> Result:
    """Runs a command to its end. `feed` writes its standard input, `output` takes its output.

    Raises an exception by the exit code, unless that is one of `accept`. If this thread is
    interrupted, or a callback raises, the command is stopped first. A `feed` knows best how far it
    is, so `progress` is not called with one.
    """
    environment = {**os.environ, "HARDPACK_PROGRESS": "json"}
    process = subprocess.Popen(
        [path_of_command(), *arguments],
        stdin=subprocess.DEVNULL if feed is None else subprocess.PIPE,
        stdout=subprocess.PIPE if output is None else output,
        stderr=subprocess.PIPE,
        env=environment,
    )
    messages: list[str] = []
    out: list[bytes] = []
    readers: list[threading.Thread] = []

    def read_messages() -> None:
        assert process.stderr is not None
        for line in process.stderr:
            _take_line(line, messages, progress if feed is None else None)

    def in_background(work: Callable[[], None]) -> None:
        thread = threading.Thread(target=work, name="hardpack", daemon=True)
        thread.start()
        readers.append(thread)

    try:
        stdout, stdin = process.stdout, process.stdin
        if stdout is not None:
            in_background(lambda: out.append(stdout.read()))
        if feed is None or stdin is None:
            read_messages()
        else:
            in_background(read_messages)
            _feed(feed, stdin)
        for thread in readers:
            thread.join()
        code = process.wait()
    except BaseException as error:
        _stop(process, isinstance(error, KeyboardInterrupt))
        raise
    finally:
        if process.poll() is not None:
            # Whoever closes what another thread reads may take the next file of that number away.
            for thread in readers:
                thread.join()
        for stream in (process.stdin, process.stdout, process.stderr):
            if stream is not None and process.poll() is not None:
                _close(stream)
    if code not in accept:
        _raise(code, messages)
    return Result(code, b"".join(out), messages)


def report(
    arguments: list[str], *, progress: Optional[ProgressCallback], accept: tuple[int, ...]
) -> dict[str, Any]:
    """Runs a command, and returns its report if it wrote one and exits with one of `accept`."""
    result = run(arguments, progress=progress, accept=accept)
    if result.code != 0 and not result.out:
        _raise(result.code, result.messages)
    found: dict[str, Any] = result.json()
    return found


def _feed(feed: Callable[[IO[bytes]], None], stdin: IO[bytes]) -> None:
    try:
        feed(stdin)
        stdin.close()
    except BrokenPipeError:
        if not _is_broken(stdin):
            # It comes from what was to be read.
            raise
        # The command has ended, and says why.


def _is_broken(pipe: IO[bytes]) -> bool:
    """Whether nobody reads a pipe any more."""
    if pipe.closed:
        return True
    poll = select.poll()
    poll.register(pipe, 0)
    return bool(poll.poll(0))


def _close(stream: IO[bytes]) -> None:
    try:
        stream.close()
    except BrokenPipeError:
        pass


def _take_line(line: bytes, messages: list[str], progress: Optional[ProgressCallback]) -> None:
    text = line.decode("utf-8", "replace").rstrip("\n")
    if text.startswith('{"progress":'):
        if progress is not None:
            told = json.loads(text)["progress"]
            progress(Progress(told["step"], told["done"], told.get("total"), told.get("files")))
    elif len(messages) < _MESSAGE_COUNT:
        messages.append(text)


def _stop(process: subprocess.Popen[bytes], was_told: bool) -> None:
    """Stops a command and waits for it. Ctrl-C on a terminal has told it already."""
    if was_told:
        try:
            process.wait(_STOP_SECONDS)
            return
        except subprocess.TimeoutExpired:
            pass
    # Standard input stays open until then: its end would look like the end of the data.
    process.send_signal(_signal_that_stops())
    process.wait()


def _signal_that_stops() -> signal.Signals:
    """Returns a signal that reaches a command.

    It has inherited what this process ignores, such as Ctrl-C in the background job of a script,
    and what this thread blocks.
    """
    blocked = signal.pthread_sigmask(signal.SIG_BLOCK, [])
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        if signal.getsignal(number) != signal.SIG_IGN and number not in blocked:
            return number
    return signal.SIGKILL


def _raise(code: int, messages: list[str]) -> NoReturn:
    said = [line for line in messages if line.startswith("hardpack: ")]
    hints = [line for line in messages if line.startswith(("hint: ", "note: "))]
    text = said[-1][len("hardpack: ") :] if said else "\n".join(messages)
    hint = hints[-1][len("hint: ") :] if hints else None
    kind = _CLASSES.get(code, errors.CannotError)
    if code < 0:
        text, kind = f"the command was ended by {_name_of(-code)}", errors.StoppedError
    number = None
    reason = _QUOTED.sub("", text)
    if code == 3 and _MISSING.search(reason):
        kind, number = errors.NotFoundError, errno.ENOENT
    elif code == 3 and _EXISTS.search(reason):
        kind, number = errors.ExistsError, errno.EEXIST
    elif code == 3 and _IN_USE.search(reason):
        kind = errors.InUseError
    raised = kind(text or f"the command failed with exit code {code}", hint=hint)
    if isinstance(raised, OSError):
        raised.errno = number
    raise raised


def _name_of(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


def main() -> NoReturn:
    """Runs the command in place of this process: the script `hardpack`."""
    os.execv(path_of_command(), ["hardpack", *sys.argv[1:]])
