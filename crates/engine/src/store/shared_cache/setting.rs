//! The setting of the shared cache, as text.

use std::fmt;
use std::io;
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::sync::Arc;

use super::SharedCache;
use crate::device::cache_path_in_memory;
use crate::error::Error;

/// The length of a cache unless the setting says another one.
const LEN_DEFAULT: u64 = 256 << 20;
/// The limits of the length.
const LEN_RANGE: std::ops::RangeInclusive<u64> = 1 << 20..=1 << 40;

/// Which shared cache to use: `off`, `on`, a size such as `256M`, the path of a file, or a path
/// with a size behind a colon.
#[derive(Clone, PartialEq, Eq, Hash, Debug, Default)]
pub struct SharedCacheSetting {
    /// The length of the file; `None` for no cache.
    len: Option<u64>,
    /// The file, unless it is the user's one in memory.
    path: Option<PathBuf>,
}

impl SharedCacheSetting {
    /// Opens the cache; `None` if none is wanted.
    ///
    /// # Errors
    /// Those of [`SharedCache::open`], and [`io::ErrorKind::NotFound`] if the system keeps no files
    /// in memory.
    pub fn open(&self) -> io::Result<Option<Arc<SharedCache>>> {
        let Some(len) = self.len else { return Ok(None) };
        let path = self.path.clone().or_else(cache_path_in_memory).ok_or_else(|| {
            io::Error::new(io::ErrorKind::NotFound, "this system keeps no files in /dev/shm")
        })?;
        SharedCache::open(&path, len).map(Some)
    }
}

impl FromStr for SharedCacheSetting {
    type Err = Error;

    fn from_str(text: &str) -> Result<SharedCacheSetting, Error> {
        let wrong = || {
            let text = format!(
                "'{text}' is no shared cache; use off, on, a size from 1M to 1T, or the full path of \
                 a file, with or without ':' and a size"
            );
            Error::Invalid(text)
        };
        let in_range = |len: u64| Some(len).filter(|len| LEN_RANGE.contains(len));
        let (len, path) = match text {
            "off" => (None, None),
            "on" => (Some(LEN_DEFAULT), None),
            _ if !text.starts_with('/') => {
                (Some(parse_len(text).and_then(in_range).ok_or_else(wrong)?), None)
            }
            _ => {
                let sized =
                    text.rsplit_once(':').and_then(|(path, len)| Some((path, parse_len(len)?)));
                let (path, len) = sized.unwrap_or((text, LEN_DEFAULT));
                (Some(in_range(len).ok_or_else(wrong)?), Some(Path::new(path).to_owned()))
            }
        };
        Ok(SharedCacheSetting { len, path })
    }
}

/// Parses a size: digits, and K, M, G or T behind them.
fn parse_len(text: &str) -> Option<u64> {
    let (digits, shift) = match text.as_bytes().last()? {
        b'K' | b'k' => (&text[..text.len() - 1], 10),
        b'M' | b'm' => (&text[..text.len() - 1], 20),
        b'G' | b'g' => (&text[..text.len() - 1], 30),
        b'T' | b't' => (&text[..text.len() - 1], 40),
        _ => (text, 0),
    };
    let is_number = !digits.is_empty() && digits.bytes().all(|byte| byte.is_ascii_digit());
    is_number.then(|| digits.parse::<u64>().ok()?.checked_mul(1 << shift)).flatten()
}

impl fmt::Display for SharedCacheSetting {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (&self.len, &self.path) {
            (None, _) => f.write_str("off"),
            (Some(len), None) => write!(f, "{len}"),
            (Some(len), Some(path)) => write!(f, "{}:{len}", path.display()),
        }
    }
}
