"""A control group whose processes read from one disk no faster than a limit.

It simulates a slow disk, where compression pays: a cold scan of a plain file is then as slow as the disk. It needs
root and the blkio controller of cgroup version 1; without them the measurement is skipped and the report says so.
"""

import os
import time

ROOT = "/sys/fs/cgroup/blkio"
LIMIT_FILE = "blkio.throttle.read_bps_device"


class Unavailable(Exception):
    """Reads cannot be throttled here; the message says why."""


def disk_of(directory):
    """Returns "major:minor" of the whole disk that holds `directory`; partitions cannot be limited."""
    device = os.stat(directory).st_dev
    name = "%d:%d" % (os.major(device), os.minor(device))
    path = os.path.realpath("/sys/dev/block/" + name)
    if not os.path.isdir(path):
        raise Unavailable("the file system of the temporary databases is not on a disk")
    if os.path.exists(os.path.join(path, "partition")):
        path = os.path.dirname(path)
    with open(os.path.join(path, "dev")) as file:
        return file.read().strip()


class Throttle:
    """The group; call `remove` when nothing runs in it any more."""

    def __init__(self, directory, bytes_per_second):
        if os.geteuid() != 0:
            raise Unavailable("throttling the disk needs root")
        if not os.path.exists(os.path.join(ROOT, LIMIT_FILE)):
            raise Unavailable("throttling the disk needs the blkio controller of cgroup version 1")
        disk = disk_of(directory)
        self.group = os.path.join(ROOT, "hardpack-bench-%d" % os.getpid())
        try:
            os.mkdir(self.group)
            with open(os.path.join(self.group, LIMIT_FILE), "w") as file:
                file.write("%s %d" % (disk, bytes_per_second))
        except OSError as error:
            self.remove()
            raise Unavailable("the disk cannot be throttled: %s" % error.strerror) from None

    def remove(self):
        for _ in range(20):
            try:
                return os.rmdir(self.group)
            except FileNotFoundError:
                return None
            except OSError:  # the last process is still on its way out
                time.sleep(0.05)
        return None


def enter(group):
    """Moves this process, and the threads it will start, into the group."""
    with open(os.path.join(group, "cgroup.procs"), "w") as file:
        file.write(str(os.getpid()))
