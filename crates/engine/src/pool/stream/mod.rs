//! Streams: snapshots on their way from one pool to another.
//!
//! ```text
//! header
//!     magic 8, version u32, reserved 4, guid 16, txg u64, base u64, first u64, scope u64, created i64,
//!     kind u8, reserved 5, name_len u16, name of the snapshot, XXH3-64 of all of this
//! frames, each
//!     type u8, length u32, payload, XXH3-64 of: its number u64, type u8, payload
//! ```
//!
//! Little-endian. Frames are numbered from `first` on, without saying so: a frame that is lost, repeated or in another's
//! place has a number that its hash does not fit. The last one, END, has the number of frames before it, and the BLAKE3 hash of
//! header and frames of this connection up to itself. What a frame says is in `body.rs`.
//!
//! **Which frames there are, and in which order, depends on nothing but the content of the snapshots.** So a stream
//! that was cut is made again from frame `first` on, without reading what comes before.
//!
//! The reader: verify the header; take each frame up to its limit, verify its hash, then what it says against what is there
//! already; never believe a length before so many bytes have come. Objects are known by their numbers in the
//! source; the receiver gives each its own, and notes which.
//!
//! * A complete stream (`base` 0) is put into a new file or directory without a name, over as many transactions as it takes. How
//!   many frames are in is noted in the same transactions. The last one gives it its name, notes where it came from and makes
//!   the snapshot, so that nobody ever sees a part of it.
//! * An incremental stream is gathered in a file without a name, and applied in one transaction once its end was verified.
//!
//! What fails leaves what was received before, out of sight, for a stream that goes on from there (see
//! [`Pool::receive_token`](super::Pool::receive_token)), or for `abort_receive`.
//!
//! `send.rs` walks what is sent, `changes.rs` what changed, `receive.rs` takes connections, `apply.rs` what the
//! frames say, `update.rs` those of an incremental stream.

mod apply;
mod body;
mod changes;
mod frame;
mod receive;
mod send;
mod update;

#[cfg(test)]
mod tests;

use std::fmt;
use std::str::FromStr;

pub use self::receive::{ReceiveOptions, ReceiveReport};
pub use self::send::{SendPlan, SendReport};
use super::names::Origin;
use crate::error::{Error, Result};
use crate::units::Txg;

/// What the format's document is compared with.
#[cfg(test)]
pub(crate) mod format {
    pub(crate) use super::frame::{FrameReader, HEADER_FRONT_LEN, Header};
    pub(crate) use crate::pool::names::{Origin, PROGRESS_FRONT_LEN, Progress};
}

/// A place in a stream, from which it can be made again.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ResumeToken {
    /// The pool that sends.
    pub guid: [u8; 16],
    /// The state that the snapshot keeps.
    pub txg: Txg,
    /// The state that the receiver has already; 0 for none.
    pub base: Txg,
    /// How many frames were received.
    pub frames: u64,
}

impl ResumeToken {
    pub(super) fn origin(&self) -> Origin {
        Origin { guid: self.guid, txg: self.txg }
    }
}

/// `guid-txg-base-frames`, the guid in hexadecimal digits.
impl fmt::Display for ResumeToken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for byte in self.guid {
            write!(f, "{byte:02x}")?;
        }
        write!(f, "-{}-{}-{}", self.txg, self.base, self.frames)
    }
}

impl FromStr for ResumeToken {
    type Err = Error;

    fn from_str(text: &str) -> Result<ResumeToken> {
        let parse = || {
            let mut parts = text.trim().split('-');
            let digits = parts.next().filter(|digits| digits.len() == 32 && digits.is_ascii())?;
            let mut guid = [0; 16];
            for (byte, at) in guid.iter_mut().zip((0..32).step_by(2)) {
                *byte = u8::from_str_radix(digits.get(at..at + 2)?, 16).ok()?;
            }
            let mut number = || parts.next()?.parse::<u64>().ok();
            let (txg, base, frames) = (Txg(number()?), Txg(number()?), number()?);
            parts.next().is_none().then_some(ResumeToken { guid, txg, base, frames })
        };
        parse().ok_or_else(|| Error::Invalid(format!("'{text}' is no token to resume from")))
    }
}
