//! A log as a file of the host, as far as a checkpoint reads it without SQLite. Its format is
//! <https://sqlite.org/fileformat2.html#the_write_ahead_log>.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::Path;

use crate::wal_index::WalIndex;

/// The lengths of the header of a log, and of that of each frame, in bytes.
const HEADER_LEN: u64 = 32;
const FRAME_HEADER_LEN: u64 = 24;
/// Where the header of a log has its salts, and that of a frame has those of its log.
const SALTS_OFFSET: u64 = 16;
const FRAME_SALTS_OFFSET: usize = 8;

/// A log, as a file of the host.
pub(super) struct Log {
    file: File,
    salts: [u8; 8],
    page_len: u64,
}

/// What the header of a frame says.
#[derive(Clone, Copy)]
pub(super) struct FrameHeader {
    pub page: u32,
    /// The length of the database in pages if a commit ends with this frame, or else 0.
    pub page_count: u32,
}

impl Log {
    /// Opens the log of this index. Returns `None` if the file is another one, or gone.
    pub fn open(path: &Path, index: &WalIndex) -> io::Result<Option<Log>> {
        let file = match File::open(path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            file => file?,
        };
        let mut salts = [0; 8];
        file.read_exact_at(&mut salts, SALTS_OFFSET)?;
        let page_len = index.page_len();
        let is_same = salts == index.salts() && page_len.is_power_of_two();
        Ok(is_same.then_some(Log { file, salts, page_len: page_len.into() }))
    }

    /// The length of a page in bytes.
    pub fn page_len(&self) -> u64 {
        self.page_len
    }

    fn offset_of(&self, frame: u32) -> u64 {
        HEADER_LEN + (u64::from(frame) - 1) * (FRAME_HEADER_LEN + self.page_len)
    }

    /// Reads the header of a frame, which must be one of this log.
    pub fn header_of(&self, frame: u32) -> io::Result<FrameHeader> {
        let mut header = [0; FRAME_HEADER_LEN as usize];
        self.file.read_exact_at(&mut header, self.offset_of(frame))?;
        let [page, page_count] =
            [0, 4].map(|at| header[at..at + 4].iter().fold(0, |n, byte| n << 8 | u32::from(*byte)));
        match header[FRAME_SALTS_OFFSET..][..8] == self.salts && page > 0 {
            true => Ok(FrameHeader { page, page_count }),
            false => Err(io::ErrorKind::InvalidData.into()),
        }
    }

    /// Reads what a frame has, which is of this page.
    pub fn read(&self, frame: u32, page: u32, bytes: &mut [u8]) -> io::Result<()> {
        if self.header_of(frame)?.page != page {
            return Err(io::ErrorKind::InvalidData.into());
        }
        self.file.read_exact_at(bytes, self.offset_of(frame) + FRAME_HEADER_LEN)
    }

    /// Makes the log durable.
    pub fn sync(&self) -> io::Result<()> {
        self.file.sync_data()
    }
}
