//! Streams: snapshots on their way from one pool to another.
//!
//! ```text
//! header
//!     magic 8, version u32, reserved 4, guid 16, txg u64, base u64, first u64, scope u64, created i64,
//!     id of the snapshot 16, id of the base 16, kind u8, reserved 5, name_len u16, name of the snapshot, XXH3-64 of all of this
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
//! **What a stream is of, and what it starts from, is known by what these states hold** ([`StateId`]): a pool file that was
//! copied and went on has the guid and the txgs of the other, and other bytes. So the header, the notes of what was
//! received, and the token to go on with all name the two ids, and nothing is applied to, or sent for, any other state.
//!
//! Streams may follow each other in one input; each is received for itself. Anything else behind an end is an error, before
//! anything of that stream is seen.
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
use crate::error::{Error, Result};
use crate::store::snapshots::{STATE_ID_LEN, StateId};

/// What the format's document is compared with.
#[cfg(test)]
pub(crate) mod format {
    pub(crate) use super::frame::{FrameReader, HEADER_FRONT_LEN, Header};
    pub(crate) use crate::pool::namespace::entries::{Origin, PROGRESS_FRONT_LEN, Progress};
}

/// A place in a stream, from which it can be made again.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ResumeToken {
    /// The snapshot that is sent.
    pub id: StateId,
    /// The one that the receiver has already, if any.
    pub base: StateId,
    /// How many frames were received.
    pub frames: u64,
}

/// `id-base-frames`, the first two in hexadecimal digits.
impl fmt::Display for ResumeToken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for id in [self.id, self.base] {
            for byte in id.0 {
                write!(f, "{byte:02x}")?;
            }
            f.write_str("-")?;
        }
        write!(f, "{}", self.frames)
    }
}

fn parse_id(digits: &str) -> Option<StateId> {
    (digits.len() == 2 * STATE_ID_LEN && digits.is_ascii()).then_some(())?;
    let mut id = StateId::NONE;
    for (byte, at) in id.0.iter_mut().zip((0..).step_by(2)) {
        *byte = u8::from_str_radix(digits.get(at..at + 2)?, 16).ok()?;
    }
    Some(id)
}

impl FromStr for ResumeToken {
    type Err = Error;

    fn from_str(text: &str) -> Result<ResumeToken> {
        let parse = || {
            let mut parts = text.trim().split('-');
            let (id, base) = (parse_id(parts.next()?)?, parse_id(parts.next()?)?);
            let frames = parts.next()?.parse().ok()?;
            let is_whole = parts.next().is_none() && !id.is_none();
            is_whole.then_some(ResumeToken { id, base, frames })
        };
        parse().ok_or_else(|| Error::Invalid(format!("'{text}' is no token to resume from")))
    }
}
