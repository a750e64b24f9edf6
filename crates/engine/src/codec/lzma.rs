//! The lzma levels: a raw LZMA2 stream by lzma-rust2, with its end marker and no container.
//!
//! The window is the whole record, with the base that it follows on if it has one, at every level.
//! So nothing about it is stored: a decoder needs no more than the lengths of both. Levels 1 to 6
//! search like the presets of xz with these numbers, 7 to 9 like preset 6 with ever longer matches.
//! Text is predicted by more bits of the byte before, and by none of the place; the stream says it.
//!
//! The library keeps nothing from one record to the next. An encoder takes a megabyte and 8 to 15
//! times that length, a decoder that length once. The encoder ends the process if it cannot have
//! its memory, so [`compress`] asks for as much before it.
#![forbid(unsafe_code)]

use std::io::{Cursor, ErrorKind, Read, Write};

use lzma_rust2::{Lzma2Options, Lzma2Reader, Lzma2Writer, LzmaOptions};

use super::corrupt;
use super::{CodecError, CodecId};

/// The level of the last preset of xz that differs in more than its window.
const PRESET_MAX: u8 = 6;
/// The lengths of matches that levels 7 and 8 take without looking for a longer one; level 6 has
/// 64, and level 9 the longest that there are.
const NICE_LENS: [u32; 2] = [96, 160];
/// How many places level 9 looks at behind a base, at most. There are more to find there; without
/// one, it looks at 152.
const DEPTH_AFTER_BASE: i32 = 2000;
/// Shorter records teach too little about many contexts.
const CONTEXT_LEN_MIN: usize = 16 << 10;
/// How many bits of the byte before, and of the place for a literal and for everything else, belong
/// to a context of text. It takes 0.2 to 0.5% less by it than with 3, 0 and 2, as xz has them. So
/// does some code of x86, but flash images of ARM take 2% more.
const TEXT_CONTEXT: (u32, u32, u32) = (4, 0, 0);
/// Text is what has at most one byte in this many that ASCII text has not.
const OTHER_PART_MAX: usize = 32;
const OUT_OF_MEMORY: CodecError =
    CodecError::Library { codec: CodecId::Lzma, reason: "out of memory" };

/// Compresses `src`, which is not empty, into the front of `dst`, as what follows on `base`, which
/// may be empty. Returns the length written, or `None` if `dst` is too short.
pub(super) fn compress(
    level: u8,
    base: &[u8],
    src: &[u8],
    dst: &mut [u8],
) -> Result<Option<usize>, CodecError> {
    let mut options = LzmaOptions::with_preset(u32::from(level.min(PRESET_MAX)));
    if let Some(above) = level.checked_sub(PRESET_MAX + 1) {
        let nice_len = NICE_LENS.get(usize::from(above)).copied();
        options.nice_len = nice_len.unwrap_or(LzmaOptions::NICE_LEN_MAX);
        if nice_len.is_none() && !base.is_empty() {
            options.depth_limit = DEPTH_AFTER_BASE;
        }
    }
    if src.len() >= CONTEXT_LEN_MIN && is_text(src) {
        (options.lc, options.lp, options.pb) = TEXT_CONTEXT;
    }
    options.dict_size = window_len(base.len() + src.len());
    options.preset_dict = (!base.is_empty()).then(|| base.to_vec());
    let memory_len = options.get_memory_usage() as usize * 1024;
    Vec::<u8>::new().try_reserve_exact(memory_len).map_err(|_| OUT_OF_MEMORY)?;
    let options = Lzma2Options { lzma_options: options, chunk_size: None };
    let mut writer = Lzma2Writer::new(Cursor::new(dst), options);
    match writer.write_all(src).and_then(|()| writer.finish()) {
        Ok(dst) => Ok(Some(dst.position() as usize)),
        Err(error) if error.kind() == ErrorKind::WriteZero => Ok(None),
        Err(error) => Err(failed(&error)),
    }
}

fn is_text(bytes: &[u8]) -> bool {
    let is_other = |byte: &&u8| !matches!(byte, b'\t' | b'\n' | b'\r' | b' '..=b'~');
    bytes.iter().filter(is_other).count() <= bytes.len() / OTHER_PART_MAX
}

/// Decompresses `src`, which follows on `base`, into `dst`; returns the length decoded, which is at
/// most `dst`'s.
pub(super) fn decompress(base: &[u8], src: &[u8], dst: &mut [u8]) -> Result<usize, CodecError> {
    let mut rest = src;
    let window_len = window_len(base.len() + dst.len());
    let preset = (!base.is_empty()).then_some(base);
    let mut reader = Lzma2Reader::new(&mut rest, window_len, preset);
    let found = fill(&mut reader, dst)?;
    if found == dst.len() && reader.read(&mut [0]).map_err(|error| failed(&error))? != 0 {
        return Err(corrupt(CodecId::Lzma, "more data than the record holds"));
    }
    if !rest.is_empty() {
        return Err(corrupt(CodecId::Lzma, "bytes behind the end of the stream"));
    }
    Ok(found)
}

/// Decompresses as many bytes of `src` as `dst` holds, and nothing behind them. Returns how many
/// there were.
pub(super) fn decompress_prefix(src: &[u8], dst: &mut [u8]) -> Result<usize, CodecError> {
    fill(&mut Lzma2Reader::new(src, window_len(dst.len()), None), dst)
}

fn fill(reader: &mut Lzma2Reader<impl Read>, dst: &mut [u8]) -> Result<usize, CodecError> {
    let mut found = 0;
    while let Some(rest) = dst.get_mut(found..).filter(|rest| !rest.is_empty()) {
        match reader.read(rest).map_err(|error| failed(&error))? {
            0 => break,
            len => found += len,
        }
    }
    Ok(found)
}

/// Returns the window for a record of `len` bytes. No match reaches back beyond its start.
fn window_len(len: usize) -> u32 {
    u32::try_from(len).unwrap_or(u32::MAX).max(lzma_rust2::DICT_SIZE_MIN)
}

fn failed(error: &std::io::Error) -> CodecError {
    match error.kind() {
        ErrorKind::OutOfMemory => OUT_OF_MEMORY,
        _ => corrupt(CodecId::Lzma, "invalid LZMA2 stream"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Compresses and restores bytes, and returns the contexts that the first chunk names.
    fn contexts(base: &[u8], src: &[u8]) -> (u32, u32, u32) {
        let mut stored = vec![0; src.len()];
        let len = compress(9, base, src, &mut stored).unwrap().unwrap();
        let mut found = vec![0; src.len()];
        assert_eq!(decompress(base, &stored[..len], &mut found), Ok(src.len()));
        assert!(found == src);
        assert!(stored[0] >= 0xc0, "the first chunk says how it is coded");
        let byte = u32::from(stored[5]);
        (byte % 9, byte / 9 % 5, byte / 45)
    }

    fn text(len: usize) -> Vec<u8> {
        (0..)
            .flat_map(|n: u32| format!("{:x} of {n}\n", n * n % 8191).into_bytes())
            .take(len)
            .collect()
    }

    #[test]
    fn text_is_told_from_the_rest() {
        let words: Vec<u8> =
            (0..20_000u32).flat_map(|n| (0xe590_0000 | (n * n % 8191)).to_le_bytes()).collect();
        let text = text(words.len());
        for base in [&[][..], &text[..5000], &words[..5000]] {
            assert_eq!(contexts(base, &words), (3, 0, 2));
            assert_eq!(contexts(base, &text), TEXT_CONTEXT);
            assert_eq!(contexts(base, &text[..CONTEXT_LEN_MIN]), TEXT_CONTEXT);
            assert_eq!(contexts(base, &text[..CONTEXT_LEN_MIN - 1]), (3, 0, 2));
        }
    }
}
