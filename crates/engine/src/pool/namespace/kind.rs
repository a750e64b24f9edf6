//! What a name stands for: a file, a directory, a symbolic link or a special file.

use std::fmt;

/// The kind of a directory entry. The discriminants are the values on disk.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
pub enum Kind {
    /// A file.
    File = 1,
    /// A directory.
    Directory = 2,
    /// A symbolic link.
    Symlink = 3,
    /// A fifo, also called a named pipe.
    Fifo = 4,
    /// The name of a socket of the Unix domain.
    Socket = 5,
    /// The node of a character device.
    CharDevice = 6,
    /// The node of a block device.
    BlockDevice = 7,
}

impl Kind {
    /// Every kind.
    pub const ALL: [Kind; 7] = [
        Kind::File,
        Kind::Directory,
        Kind::Symlink,
        Kind::Fifo,
        Kind::Socket,
        Kind::CharDevice,
        Kind::BlockDevice,
    ];

    /// Whether it is a special file: a fifo, a socket or the node of a device. Special files have
    /// names and attributes like others, but no content.
    pub fn is_special(self) -> bool {
        match self {
            Kind::File | Kind::Directory | Kind::Symlink => false,
            Kind::Fifo | Kind::Socket => true,
            Kind::CharDevice | Kind::BlockDevice => true,
        }
    }

    /// Whether it is the node of a device, which has a number.
    pub fn is_device(self) -> bool {
        matches!(self, Kind::CharDevice | Kind::BlockDevice)
    }

    pub(in crate::pool) fn from_stored(value: u8) -> Option<Kind> {
        Kind::ALL.into_iter().find(|kind| *kind as u8 == value)
    }
}

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Kind::File => "file",
            Kind::Directory => "directory",
            Kind::Symlink => "symbolic link",
            Kind::Fifo => "fifo",
            Kind::Socket => "socket",
            Kind::CharDevice => "character device",
            Kind::BlockDevice => "block device",
        })
    }
}

/// The number of a device, which tells the system the driver and the device. Zero for everything
/// that is not the node of a device.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct DeviceNumber {
    /// The driver.
    pub major: u32,
    /// The device among those of the driver.
    pub minor: u32,
}

impl fmt::Display for DeviceNumber {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}, {}", self.major, self.minor)
    }
}
