//! Compressing and decompressing, with and without dictionaries, whole records and fronts.

use std::sync::OnceLock;

use hardpack_engine::codec::{Codec, CodecId, Compression, Dictionary, Policy, table, with_codec};

use super::input::{Input, content};

/// Bytes after the destination that must not change.
const GUARD: [u8; 64] = [0xa5; 64];
const RECORD_LEN_MAX: usize = 300_000;

/// Returns a dictionary with zstd's own header and tables.
fn trained() -> &'static Dictionary {
    static TRAINED: OnceLock<Dictionary> = OnceLock::new();
    TRAINED.get_or_init(|| {
        let samples: Vec<u8> = (0..400).flat_map(|n| content(n * 4 + 3, 512)).collect();
        Dictionary::new(
            Dictionary::train(&samples, &[512; 400], 8192).expect("the samples can be trained on"),
        )
    })
}

/// Calls `with` with the dictionary that the input chooses.
fn with_dictionary<R>(
    input: &mut Input<'_>,
    with: impl FnOnce(&mut Input<'_>, Option<&Dictionary>) -> R,
) -> R {
    match input.below(4) {
        1 => with(input, Some(trained())),
        2 => {
            let bytes = input.short_bytes();
            with(input, Some(&Dictionary::new(bytes)))
        }
        3 => {
            // A damaged trained one: some of its front comes from the input.
            let mut bytes = trained().bytes().to_vec();
            let at = input.below(bytes.len());
            for (byte, new) in bytes[at..].iter_mut().zip(input.short_bytes()) {
                *byte = *new;
            }
            with(input, Some(&Dictionary::new(bytes)))
        }
        _ => with(input, None),
    }
}

/// Decompresses the input. Decoding twice gives the same bytes, also for the front.
pub fn decompress(data: &[u8]) {
    let mut input = Input(data);
    let codec = input.u8() % 8;
    let len = input.below(RECORD_LEN_MAX);
    let front_len = input.below(len + 1);
    with_dictionary(&mut input, |input, dictionary| {
        let stream = input.rest();
        let mut whole = [&vec![0; len][..], &GUARD].concat();
        let decoded =
            with_codec(|c| c.decompress_with(codec, stream, &mut whole[..len], dictionary));
        assert_eq!(whole[len..], GUARD);
        let mut front = [&vec![0; front_len][..], &GUARD].concat();
        let decoded_front =
            with_codec(|c| c.decompress_prefix(codec, stream, &mut front[..front_len], len));
        assert_eq!(front[front_len..], GUARD);
        if decoded.is_ok() {
            let mut again = vec![1; len];
            Codec::new()
                .decompress_with(codec, stream, &mut again, dictionary)
                .expect("it decoded once");
            assert!(again == whole[..len], "the second decoding gives other bytes");
        }
        if decoded.is_ok() && dictionary.is_none() {
            decoded_front.expect("the whole decodes");
            assert!(front[..front_len] == whole[..front_len], "the front decodes to other bytes");
        }
    });
}

/// A compressed record decompresses to the same bytes.
pub fn round_trip(data: &[u8]) {
    let mut input = Input(data);
    let compressions: Vec<Compression> = table().map(|(_, compression)| compression).collect();
    let compression = compressions[input.below(compressions.len())];
    let limit = if input.one_in(3) { input.below(5000) } else { usize::MAX };
    let repeats = 1 + input.below(16);
    with_dictionary(&mut input, |input, dictionary| {
        let record = input.rest().repeat(repeats);
        let dictionary = dictionary.filter(|_| compression.uses_dictionary());
        let mut stream = Vec::new();
        with_codec(|codec| {
            // A damaged dictionary may be refused.
            let Ok(fits) =
                codec.compress_with(compression, &record, &mut stream, limit, dictionary)
            else {
                return assert!(dictionary.is_some());
            };
            assert!(fits || limit != usize::MAX);
            assert!(stream.len() <= limit);
            if fits {
                check(codec, compression.codec_id(), &stream, &record, dictionary);
            }
            let policy = Policy::default();
            let encoded = codec.encode_with(compression, &record, &policy, &mut stream, dictionary);
            let (encoded, _) = encoded.expect("it compressed");
            assert!(stream.len() <= record.len(), "{encoded:?}");
        });
    });
}

fn check(
    codec: &mut Codec,
    id: CodecId,
    stream: &[u8],
    record: &[u8],
    dictionary: Option<&Dictionary>,
) {
    let mut back = vec![0; record.len()];
    codec.decompress_with(id as u8, stream, &mut back, dictionary).expect("it was just compressed");
    assert!(back == record);
    if !record.is_empty() {
        let longer =
            codec.decompress_with(id as u8, stream, &mut vec![0; record.len() + 1], dictionary);
        assert!(longer.is_err(), "a record of another length is decoded");
        let mut shorter = vec![0; record.len() - 1];
        assert!(codec.decompress_with(id as u8, stream, &mut shorter, dictionary).is_err());
    }
}
