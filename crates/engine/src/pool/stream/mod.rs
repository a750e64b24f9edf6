//! Streams: snapshots on their way from one pool to another.
//!
//! ```text
//! header
//!     magic 8, version u32, features u32, guid 16, txg u64, base u64, first u64, scope u64,
//!     created i64, id of the snapshot 16, id of the base 16, kind u8, reserved 5, name_len u16,
//!     name of the snapshot, XXH3-64 of everything before
//! frames, each
//!     type u8, length u32, payload, XXH3-64 of: its number u64, type u8, payload
//! ```
//!
//! All numbers are little-endian. Frames are numbered from `first` on, and the numbers are not
//! stored: a frame that was lost, repeated or moved fails its hash, because it has the wrong
//! number. The last frame, END, contains the number of frames before it, and the BLAKE3 hash of the
//! header and frames of this connection before END. `body.rs` describes the payloads.
//!
//! **The frames and their order depend only on the content of the snapshots.** So an interrupted
//! stream can be generated again from frame `first` on, without reading anything before.
//!
//! **A snapshot and its base are identified by the content of their states** ([`StateId`]). A copy
//! of a pool file that continued separately has the same guid and the same txgs, but other content.
//! So the header, the records of received snapshots, and the resume token all contain both ids, and
//! a stream is never applied to, or sent from, any other state.
//!
//! Several streams may follow each other in one input; each is received separately. Anything else
//! after the end of a stream is an error, raised before any of that stream becomes visible.
//!
//! The reader verifies the header. It takes each frame up to the length limit, verifies its hash,
//! and then checks its contents against the existing data. It never trusts a length before that
//! many bytes have arrived. Objects are identified by their numbers in the source; the receiver
//! assigns its own and records the translation.
//!
//! * A complete stream (`base` 0) goes into a new file or directory that has no name yet, over as
//!   many transactions as needed. Each transaction also records how many frames were applied. The
//!   last one names the file, records its origin and creates the snapshot, so that nobody ever sees
//!   a part of it.
//! * An incremental stream is collected in a nameless file and applied in one transaction once its
//!   end is verified.
//!
//! After a failure, the frames received so far are kept, invisibly, until a stream resumes from
//! there (see [`Pool::receive_token`](super::Pool::receive_token)) or `abort_receive` removes them.
//!
//! `send.rs` walks the data to send and `changes.rs` the changes; `receive.rs` handles connections,
//! `apply.rs` applies frames, `update.rs` applies those of an incremental stream, whose records
//! `staging.rs` has stored before, `base.rs` finds the state it starts from, and `found_bases.rs`
//! what need not be stored a second time.

mod apply;
mod base;
mod body;
mod changes;
mod found_bases;
mod frame;
mod receive;
mod send;
mod staging;
mod update;

#[cfg(test)]
mod tests;

use std::fmt;
use std::str::FromStr;

pub use self::receive::{ReceiveOptions, ReceiveReport};
pub use self::send::{SendPlan, SendReport};
use crate::error::{Error, Result};
use crate::store::format::snapshot::{STATE_ID_LEN, StateId};

/// The items that a test compares with the format document.
#[cfg(test)]
pub(crate) mod format {
    pub(crate) use super::frame::{FrameReader, HEADER_FRONT_LEN, Header};
    pub(crate) use crate::pool::namespace::entries::{Origin, PROGRESS_FRONT_LEN, Progress};
}

/// A position in a stream from which it can be generated again.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ResumeToken {
    /// The snapshot being sent.
    pub id: StateId,
    /// The base snapshot that the receiver already has, if any.
    pub base: StateId,
    /// How many frames were received.
    pub frames: u64,
}

/// Formatted as `id-base-frames`, with the ids in hexadecimal digits.
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
        parse().ok_or_else(|| Error::Invalid(format!("'{text}' is not a resume token")))
    }
}
