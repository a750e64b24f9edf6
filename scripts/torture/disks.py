"""File systems of the kernel on loop devices, small enough to fill and cheap enough to copy at once.

Everything attached and mounted is detached in the end, whatever happens; `cleanup` is idempotent.
"""

import atexit
import errno
import os
import shutil
import subprocess
import sys
import time

MKFS = {
    "ext4": ["mkfs.ext4", "-q", "-F"],
    "xfs": ["mkfs.xfs", "-q", "-f", "-m", "reflink=1"],
    "btrfs": ["mkfs.btrfs", "-q", "-f"],
}
# The smallest size that all three file systems accept.
IMAGE_LEN = 320 << 20
# A ballast that misses its aim by this much is good enough.
BALLAST_SLACK = 64 << 10
# How long to wait for children of killed workers.
ORPHANS_SECONDS = 60

_mounted = []


def system(*command):
    """Runs a system command; raises its output if it fails."""
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        raise OSError(f"{' '.join(command)}: {done.stderr.strip()}")
    return done.stdout.strip()


class Disk:
    """An image file, attached and mounted."""

    def __init__(self, image, kind, directory, direct=False, discard=False):
        self.image, self.kind, self.path, self.device = image, kind, directory, None
        os.makedirs(directory, exist_ok=True)
        options = ["--direct-io=on"] if direct else []
        self.device = system("losetup", "--find", "--show", *options, image)
        _mounted.append(self)
        try:
            system("mount", "-t", kind, *(["-o", "discard"] if discard else []), self.device, directory)
        except OSError:
            self.close()
            raise
        self.ballast = os.path.join(directory, "ballast")

    @classmethod
    def create(cls, image, kind, directory, direct=False, discard=False, length=IMAGE_LEN):
        with open(image, "wb") as file:
            file.truncate(length)
        system(*MKFS[kind], image)
        return cls(image, kind, directory, direct, discard)

    def is_direct(self):
        with open(f"/sys/block/{os.path.basename(self.device)}/loop/dio") as file:
            return file.read().strip() == "1"

    def flushed_and_written(self):
        """Returns the number of completed cache flushes of the device, and of sectors written."""
        with open(f"/sys/block/{os.path.basename(self.device)}/stat") as file:
            fields = file.read().split()
        return int(fields[15]), int(fields[6])

    def free(self):
        found = os.statvfs(self.path)
        return found.f_bavail * found.f_frsize

    def fill(self, leave):
        """Takes all space except this many bytes."""
        with open(self.ballast, "ab") as file:
            step = self.free()
            while step > BALLAST_SLACK and self.free() > leave + BALLAST_SLACK:
                step = min(step, self.free() - leave)
                try:
                    os.posix_fallocate(file.fileno(), os.fstat(file.fileno()).st_size, step)
                except OSError as error:
                    if error.errno != errno.ENOSPC:
                        raise
                    step //= 2

    def make_room(self):
        if os.path.exists(self.ballast):
            os.remove(self.ballast)
        # Some file systems free space only with their next commit.
        system("sync", "-f", self.path)

    def close(self, lazily=False):
        if self not in _mounted:
            return
        until = time.monotonic() + ORPHANS_SECONDS
        while os.path.ismount(self.path):
            try:
                system("umount", *(["--lazy"] if lazily else []), self.path)
            except OSError:
                # A child of a killed worker may still have a file open; it ends by itself.
                if time.monotonic() > until:
                    raise
                time.sleep(0.2)
        system("losetup", "--detach", self.device)
        _mounted.remove(self)

    def __enter__(self):
        return self

    def __exit__(self, error, *_):
        # After a failure somebody may still have a file open.
        self.close(lazily=error is not None)


def cleanup():
    """Unmounts and detaches everything left, inner before outer."""
    for disk in reversed(_mounted[:]):
        try:
            disk.close(lazily=True)
        except OSError as error:
            print(f"left behind: {error}", file=sys.stderr)


def kinds(context, wanted):
    """Returns the file systems that can be created and mounted here; reports what is missing."""
    if os.geteuid() != 0:
        context.skip(f"{wanted}: needs root, for loop devices")
        return []
    atexit.register(cleanup)
    usable = []
    with context.directory("probe") as directory:
        for kind, command in MKFS.items():
            if not shutil.which(command[0]):
                context.skip(f"{wanted} on {kind}: no {command[0]} (Debian packages e2fsprogs, xfsprogs, btrfs-progs)")
                continue
            image = os.path.join(directory, kind)
            try:
                Disk.create(image, kind, os.path.join(directory, "mounted")).close()
                usable.append(kind)
            except OSError as error:
                context.skip(f"{wanted} on {kind}: {error}")
            os.remove(image)
    return usable
