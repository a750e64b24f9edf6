"""Shared by the tests: a directory to work in, and Python processes of their own."""

import os
import subprocess
import sys
import textwrap

import pytest


@pytest.fixture
def work(tmp_path, monkeypatch):
    """An empty directory, which is the current one."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def python(work):
    """Runs code in a Python of its own, since a process registers the VFS only once."""

    def run(code, *arguments, fails=False, **environment):
        done = subprocess.run(
            [sys.executable, "-c", textwrap.dedent(code), *arguments],
            cwd=work,
            env={**os.environ, **environment},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            timeout=120,
        )
        assert (done.returncode != 0) == fails, done.stdout + done.stderr
        return done.stderr if fails else done.stdout

    return run


def is_pool(path):
    with open(path, "rb") as file:
        return file.read(13) == b"Hardpack pool"
