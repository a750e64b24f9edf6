//! Transformed forms: runs of machine code, sound and pictures in a record are turned into
//! something of the same length that compresses better.
//!
//! ```text
//! record <-- runs turned back <-- codec <-- compressed bytes, then the directory of the runs
//! ```
//!
//! Two calls of one function look different, since a call names the distance to it; as addresses
//! they are equal (`branches.rs`). Two samples next to each other differ by little, though neither
//! repeats (`samples.rs`). Which run is what is found by looking at the bytes (`look.rs`), and
//! whoever asks for a form has to see whether it is shorter once compressed: among near-copies,
//! what a transform does to one run may hide that another repeats it. `docs/format.md` documents
//! the bytes.
//!
//! Invariants:
//!
//! * A form is given out only after it was found to give exactly the record.
//! * Whatever the data says, restoring allocates at most twice the length of the record, and the
//!   entries of a directory that is no longer than the record.
#![forbid(unsafe_code)]

mod branches;
mod look;
mod samples;
#[cfg(test)]
mod tests;

use std::ops::Range;

use self::branches::Machine;
use self::samples::Samples;
use super::{Codec, CodecError, CodecId, corrupt};

/// Shorter runs are left as they are: nothing is saved that pays for their entry.
const RUN_LEN_MIN: usize = 64;
/// The bytes of an entry: start, length, position, transform, parameter.
const ENTRY_LEN: usize = 14;
/// The length of what is behind the entries: their number.
const COUNT_LEN: usize = 4;

/// The number of the transform of samples. Lower ones are those of machines.
const SAMPLES: u8 = 5;

/// What is done to the bytes of a run.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Transform {
    Branches(Machine),
    Samples(Samples),
}

impl Transform {
    fn to_bytes(self) -> [u8; 2] {
        match self {
            Transform::Branches(machine) => [machine as u8, 0],
            Transform::Samples(samples) => [SAMPLES, samples.to_byte()],
        }
    }

    fn from_bytes([number, parameter]: [u8; 2]) -> Option<Transform> {
        if number == SAMPLES {
            return Samples::from_byte(parameter).map(Transform::Samples);
        }
        Machine::from_number(number).filter(|_| parameter == 0).map(Transform::Branches)
    }
}

/// Bytes of a record that are transformed together.
#[derive(Clone, PartialEq, Eq, Debug)]
struct Run {
    range: Range<usize>,
    /// Where they are in their file, for addresses.
    position: u32,
    transform: Transform,
}

impl Run {
    fn apply(&self, record: &mut [u8]) {
        let bytes = &mut record[self.range.clone()];
        match self.transform {
            Transform::Branches(machine) => machine.to_addresses(bytes, self.position),
            Transform::Samples(samples) => samples.split(bytes),
        }
    }

    fn restore(&self, record: &mut [u8]) {
        let bytes = &mut record[self.range.clone()];
        match self.transform {
            Transform::Branches(machine) => machine.to_distances(bytes, self.position),
            Transform::Samples(samples) => samples.join(bytes),
        }
    }
}

/// Where bytes of a file are in a record that is put together from several.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Origin {
    /// Where they begin in the record. They end where the next ones begin.
    pub start: usize,
    /// Tells files apart.
    pub file: u64,
    /// Where they begin in the file.
    pub position: u64,
}

/// A record in its transformed form.
pub(crate) struct Form {
    /// As many bytes as the record has.
    pub bytes: Vec<u8>,
    /// What stands behind them once they are compressed.
    pub directory: Vec<u8>,
    /// How many of them were transformed.
    pub transformed_len: u64,
}

impl Form {
    /// Returns the transformed form of a record; nothing if it seems to have no run of a kind that
    /// is known. `origins` are in ascending order, and the first is at 0.
    pub fn of(record: &[u8], origins: &[Origin]) -> Option<Form> {
        let runs = look::runs(record, origins);
        if runs.is_empty() {
            return None;
        }
        let mut bytes = record.to_vec();
        runs.iter().for_each(|run| run.apply(&mut bytes));
        let form = Form {
            bytes,
            directory: directory_of(&runs),
            transformed_len: runs.iter().map(|run| run.range.len() as u64).sum(),
        };
        let mut restored = form.bytes.clone();
        runs.iter().for_each(|run| run.restore(&mut restored));
        let is_same = restored == record
            && split(&form.directory, record.len())
                .is_ok_and(|(rest, found)| rest.is_empty() && found == runs);
        debug_assert!(is_same, "a transformed form does not give back its record");
        is_same.then_some(form)
    }
}

fn directory_of(runs: &[Run]) -> Vec<u8> {
    let mut directory = Vec::with_capacity(runs.len() * ENTRY_LEN + COUNT_LEN);
    for run in runs {
        directory.extend_from_slice(&(run.range.start as u32).to_le_bytes());
        directory.extend_from_slice(&(run.range.len() as u32).to_le_bytes());
        directory.extend_from_slice(&run.position.to_le_bytes());
        directory.extend_from_slice(&run.transform.to_bytes());
    }
    directory.extend_from_slice(&(runs.len() as u32).to_le_bytes());
    directory
}

/// Splits stored bytes into what the codec wrote and the runs of a record of `record_len` bytes;
/// the error says what is wrong.
fn split(stored: &[u8], record_len: usize) -> Result<(&[u8], Vec<Run>), &'static str> {
    let short = "too short for the directory of its transforms";
    let (before, count) = stored.split_last_chunk::<COUNT_LEN>().ok_or(short)?;
    let count = u32::from_le_bytes(*count) as usize;
    // Before anything is allocated for them.
    if count > record_len / RUN_LEN_MIN {
        return Err("it has more transforms than the record has room for");
    }
    let (data, entries) =
        before.split_at_checked(before.len().wrapping_sub(count * ENTRY_LEN)).ok_or(short)?;
    let mut end = 0;
    let mut runs = Vec::with_capacity(count);
    for entry in entries.as_chunks::<ENTRY_LEN>().0 {
        let number = |at: usize| {
            u32::from_le_bytes([entry[at], entry[at + 1], entry[at + 2], entry[at + 3]])
        };
        let (start, len, position) = (number(0) as usize, number(4) as usize, number(8));
        let transform = Transform::from_bytes([entry[12], entry[13]])
            .ok_or("it has a transform that does not exist")?;
        if start < end || len < RUN_LEN_MIN || len > record_len.saturating_sub(start) {
            return Err("the places of its transforms are impossible");
        }
        if let Transform::Branches(machine) = transform
            && !position.is_multiple_of(machine.alignment())
        {
            return Err("its machine code is not aligned");
        }
        end = start + len;
        runs.push(Run { range: start..end, position, transform });
    }
    Ok((data, runs))
}

impl Codec {
    /// Restores a record from the compressed bytes of a [`Form`] and its directory.
    ///
    /// # Errors
    ///
    /// The errors of [`Codec::decompress`], and one for a directory that no writer made.
    pub(crate) fn decompress_transformed(
        &mut self,
        codec: u8,
        stored: &[u8],
        dst: &mut [u8],
    ) -> Result<(), CodecError> {
        let id = CodecId::try_from(codec)?;
        let (data, runs) = split(stored, dst.len()).map_err(|what| corrupt(id, what))?;
        self.decompress(codec, data, dst)?;
        runs.iter().for_each(|run| run.restore(dst));
        Ok(())
    }
}
