//! Decompresses the many small zstd frames of a database, each with a dictionary or none.

use std::collections::HashMap;
use std::io::ErrorKind;

use zstd_safe::{DCtx, DParameter, FrameFormat, InBuffer, OutBuffer, ResetDirective};

use super::archives::damaged;
use super::zstd_stream;
use crate::failure::Reason;

/// The most prepared dictionaries that are kept, to bound memory.
const PREPARED_COUNT_MAX: usize = 64;
/// The least space for a decompressed frame, in bytes.
const SPACE_LEN_MIN: usize = 256;

/// Decompresses frames.
pub struct Frames {
    format: FrameFormat,
    /// A context for each dictionary that was used lately, by its number.
    prepared: HashMap<i64, DCtx<'static>>,
}

impl Frames {
    pub fn new(format: FrameFormat) -> Frames {
        Frames { format, prepared: HashMap::new() }
    }

    /// Decompresses a frame of at most `len_max` bytes. `load` returns the dictionary of a number;
    /// negative numbers mean none.
    pub fn decode(
        &mut self,
        frame: &[u8],
        dictionary: i64,
        len_max: usize,
        load: impl FnOnce(i64) -> Result<Vec<u8>, Reason>,
    ) -> Result<Vec<u8>, Reason> {
        let dictionary = dictionary.max(-1);
        if self.prepared.len() >= PREPARED_COUNT_MAX && !self.prepared.contains_key(&dictionary) {
            self.prepared.clear();
        }
        let context = match self.prepared.entry(dictionary) {
            std::collections::hash_map::Entry::Occupied(entry) => entry.into_mut(),
            std::collections::hash_map::Entry::Vacant(entry) => {
                let mut context = DCtx::try_create()
                    .ok_or_else(|| Reason::from(std::io::Error::from(ErrorKind::OutOfMemory)))?;
                context.set_parameter(DParameter::Format(self.format)).map_err(failed)?;
                if dictionary >= 0 {
                    context.load_dictionary(&load(dictionary)?).map_err(failed)?;
                }
                entry.insert(context)
            }
        };
        decode(context, frame, len_max)
    }
}

fn failed(code: usize) -> Reason {
    match zstd_stream::failed(code) {
        error if error.kind() == ErrorKind::InvalidData => {
            damaged(format!("it does not decompress: {error}"))
        }
        error => error.into(),
    }
}

fn decode(context: &mut DCtx<'_>, frame: &[u8], len_max: usize) -> Result<Vec<u8>, Reason> {
    context.reset(ResetDirective::SessionOnly).map_err(failed)?;
    let mut out =
        Vec::with_capacity((frame.len() * 4).clamp(SPACE_LEN_MIN, len_max.max(SPACE_LEN_MIN)));
    let mut input = InBuffer::around(frame);
    loop {
        let (start, space) = (out.len(), out.capacity());
        let mut output = OutBuffer::around_pos(&mut out, start);
        let rest = context.decompress_stream(&mut output, &mut input).map_err(failed)?;
        let is_full = output.pos() == space;
        if rest == 0 {
            return match input.pos() == frame.len() {
                true if out.len() <= len_max => Ok(out),
                true => Err(damaged("it is too long")),
                false => Err(damaged("there are bytes behind its end")),
            };
        }
        match is_full {
            true if space > len_max => return Err(damaged("it is too long")),
            true => out.reserve(space),
            false if input.pos() == frame.len() => return Err(damaged("its end is missing")),
            false => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn frame(content: &[u8], dictionary: &[u8], format: FrameFormat) -> Vec<u8> {
        let mut context = zstd_safe::CCtx::create();
        context.set_parameter(zstd_safe::CParameter::Format(format)).unwrap();
        context.set_parameter(zstd_safe::CParameter::ContentSizeFlag(false)).unwrap();
        context.load_dictionary(dictionary).unwrap();
        let mut frame = Vec::with_capacity(zstd_safe::compress_bound(content.len()));
        context.compress2(&mut frame, content).unwrap();
        frame
    }

    #[test]
    fn frames_of_any_dictionary_are_decoded() {
        let long = b"what is repeated, ".repeat(1000);
        for format in [FrameFormat::One, FrameFormat::Magicless] {
            let mut frames = Frames::new(format);
            for number in -1..100 {
                let dictionary = format!("the dictionary of number {number}").repeat(20);
                let dictionary = if number < 0 { String::new() } else { dictionary };
                for content in [&b""[..], b"the dictionary of number", &long] {
                    let frame = frame(content, dictionary.as_bytes(), format);
                    let load = |_| Ok(dictionary.clone().into_bytes());
                    let found = frames.decode(&frame, number, long.len(), load).unwrap();
                    assert_eq!(found, content, "{number}");
                }
            }
        }
    }

    #[test]
    fn damage_is_an_error() {
        let good = frame(&[7; 5000], b"", FrameFormat::One);
        let longer = [&good[..], b"x"].concat();
        let wrong: [&[u8]; 5] = [b"", b"no frame", &good[..good.len() - 1], &longer, &good[1..]];
        let none = |_| Ok(Vec::new());
        for bytes in wrong {
            assert!(
                Frames::new(FrameFormat::One).decode(bytes, -1, 5000, none).is_err(),
                "{bytes:?}"
            );
        }
        assert!(Frames::new(FrameFormat::One).decode(&good, -1, 4999, none).is_err());
        assert!(Frames::new(FrameFormat::One).decode(&good, -1, 5000, none).is_ok());
    }
}
