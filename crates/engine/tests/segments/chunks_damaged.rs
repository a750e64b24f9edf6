//! Damaged, forged and hostile pools with chunks.

use std::sync::Arc;

use crate::common::chunks::{import, records};
use crate::common::segments::{empty_pool, file_at, put};
use crate::common::{Rng, options, read_all};
use hardpack_engine::device::{Device, MemoryDevice};
use hardpack_engine::pool::{Fate, PART_LEN, Pool, Property, Salvage, SalvageFile};
use hardpack_engine::store::checksum::ChecksumKind;
use hardpack_engine::store::format::pointer::Place;
use hardpack_engine::store::trees::TreeId;
use hardpack_engine::store::{Durability, Encoding};

fn open(image: Vec<u8>) -> Salvage {
    let device: Arc<dyn Device> = Arc::new(MemoryDevice::new(image));
    Salvage::open(device, &options(1 << 20), None, &mut |_| {}).unwrap()
}

/// Compares a salvaged file with its true content, and returns how many bytes of it are lost.
fn verify(salvage: &Salvage, file: &SalvageFile, expected: &[u8], label: &str) -> usize {
    assert_eq!(file.attributes.len, expected.len() as u64, "{label}");
    let mut lost = 0;
    for start in (0..file.attributes.len).step_by(PART_LEN as usize) {
        let part = salvage.read_part(file, start).unwrap();
        let mut at = start;
        for stretch in &part.stretches {
            assert_eq!(stretch.start, at, "{label}");
            at = stretch.end;
            let range = stretch.start as usize..stretch.end as usize;
            let bytes = &part.bytes[range.start - start as usize..range.end - start as usize];
            match stretch.fate {
                Fate::Lost => {
                    assert!(bytes.iter().all(|byte| *byte == 0), "{label}: {range:?}");
                    lost += bytes.len();
                }
                _ => assert!(*bytes == expected[range.clone()], "{label}: wrong at {range:?}"),
            }
        }
        assert_eq!(at, (start + PART_LEN).min(file.attributes.len), "{label}");
    }
    lost
}

/// A chunk may lie in two of the parts in which a file is salvaged.
#[test]
fn a_long_file_of_chunks_is_salvaged_whole() {
    for record_len in ["128K", "16M"] {
        let properties = [(Property::Chunking, "cdc"), (Property::RecordSize, record_len)];
        let (device, pool) = empty_pool(&properties);
        let bytes = Rng(1).text(2 * PART_LEN as usize + 300_000);
        import(&pool, b"a", &bytes);
        pool.close().unwrap();
        let salvage = open(device.image());
        let file = salvage.files().iter().find(|file| file.attributes.len > 0).unwrap();
        assert_eq!(verify(&salvage, file, &bytes, record_len), 0);
    }
}

/// What is lost with a chunk is not taken for what the next one has in the same page.
#[test]
fn a_damaged_chunk_is_lost_to_the_byte() {
    let properties = [(Property::Chunking, "cdc"), (Property::RecordSize, "16K")];
    let (device, pool) = empty_pool(&properties);
    let mut bytes = Rng(2).text(300_000);
    bytes[100_000..150_000].fill(0);
    let id = import(&pool, b"a", &bytes);
    let chunks = records(&pool, id);
    let ashift = pool.store().ashift();
    pool.close().unwrap();
    assert!(chunks.len() > 20);
    for (_, pointer) in chunks {
        let Place::Extent { .. } = pointer.place else { continue };
        let run = pointer.run(ashift).unwrap();
        let mut image = device.image();
        image[(run.start.0 << ashift) as usize..][..pointer.stored_len as usize].fill(0);
        let salvage = open(image);
        let file = salvage.files().iter().find(|file| file.attributes.len > 0).unwrap();
        assert_eq!(verify(&salvage, file, &bytes, "damaged"), pointer.len as usize);
    }
}

/// A chunk in a pool that says it has none is changed without a panic, whatever becomes of it.
#[test]
fn chunks_without_their_feature_do_no_harm() {
    for seed in 0..20 {
        let mut rng = Rng(seed);
        let (device, pool) = empty_pool(&[(Property::RecordSize, "16K")]);
        let bytes = vec![0; 100_000];
        let file = put(&pool, b"a", &bytes);
        let mut txn = pool.store().begin(ChecksumKind::Xxh3).unwrap();
        let mut at = 4096 - rng.below(60);
        while at < 90_000 {
            let len = 60 + rng.below(40) as usize;
            let chunk = rng.text(len);

            let pointer = txn.embed(Some(&chunk), Encoding::RAW, len as u32).unwrap();
            let key = [file.id().0.to_be_bytes(), at.to_be_bytes()].concat();
            txn.insert(TreeId::Map, &key, &pointer.to_bytes()).unwrap();
            at = (at + 4096 * (1 + rng.below(3))).next_multiple_of(4096) - rng.below(60);
        }
        txn.commit(Durability::Durable).unwrap();
        drop((file, pool));
        let pool = Pool::open(device, options(rng.pick(&[0, 20_000, 1 << 20]))).unwrap();
        let file = file_at(&pool, b"a");
        for _ in 0..10 {
            let len = rng.pick(&[10, 5000, 40_000]);
            let at = rng.below(bytes.len() as u64) as usize;
            let new = rng.text(len.min(bytes.len() - at));
            file.write_at(&new, at as u64).unwrap();
            if rng.one_in(3) {
                file.commit(Durability::Visible).unwrap();
            }
        }
        file.commit(Durability::Visible).unwrap();
        assert_eq!(read_all(&file).unwrap().len(), bytes.len(), "seed {seed}");
    }
}
