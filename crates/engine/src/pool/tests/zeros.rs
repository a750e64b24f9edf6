//! Zeros that an import is told of are the same as zeros that it is given.

use std::sync::Arc;

use super::namespace::empty_pool;
use crate::device::{Device, MemoryDevice};
use crate::error::Error;
use crate::pool::{Attributes, FILE_LEN_MAX, Kind, Property, ROOT};
use crate::test_common::{Rng, problems, read_all};

#[test]
fn an_import_is_told_of_zeros_at_any_place() {
    for seed in 0..40 {
        let rng = &mut Rng(seed);
        let device: Arc<dyn Device> = Arc::new(MemoryDevice::default());
        let pool = empty_pool(&device);
        pool.set_property(ROOT, Property::Chunking, rng.pick(&["fixed", "cdc"])).unwrap();
        pool.set_property(ROOT, Property::RecordSize, rng.pick(&["4K", "16K", "2M"])).unwrap();
        let mut import = pool.import(0);
        let mut expected = Vec::new();
        for name in [b"one", b"two"] {
            let mut content = Vec::new();
            import.begin_file(ROOT, name, &Attributes::new(Kind::File, ROOT), &[]).unwrap();
            for _ in 0..rng.below(6) {
                let lens = [0, 1, 4096, 70_000, 1 << 20, (1 << 20) + 1, 4 << 20, 5 << 20];
                let len = rng.pick(&lens);
                let len: usize = if rng.one_in(4) { rng.below(len + 1) } else { len } as usize;
                if rng.one_in(2) {
                    let bytes = rng.text(len);
                    import.write(&bytes).unwrap();
                    content.extend(bytes);
                } else {
                    import.write_zeros(len as u64).unwrap();
                    content.resize(content.len() + len, 0);
                }
            }
            import.end_file().unwrap();
            expected.push((name, content));
        }
        assert_eq!(import.finish().unwrap().refused, [], "seed {seed}");
        for (name, content) in expected {
            let found = read_all(&pool.file(pool.resolve(name).unwrap().file).unwrap()).unwrap();
            assert!(found == content, "seed {seed}: {} and {}", found.len(), content.len());
        }
        assert_eq!(problems(&pool).unwrap(), [""; 0], "seed {seed}");
    }
}

#[test]
fn zeros_make_no_file_too_long() {
    let device: Arc<dyn Device> = Arc::new(MemoryDevice::default());
    let pool = empty_pool(&device);
    let mut import = pool.import(0);
    let like = Attributes::new(Kind::File, ROOT);
    import.begin_file(ROOT, b"long", &like, &[]).unwrap();
    import.write(b"begin").unwrap();
    import.write_zeros(FILE_LEN_MAX - 6).unwrap();
    for more in [2, u64::MAX] {
        assert!(matches!(import.write_zeros(more), Err(Error::Invalid(_))));
    }
    import.write(b"e").unwrap();
    import.end_file().unwrap();
    assert_eq!(import.finish().unwrap().refused, []);
    let file = pool.file(pool.resolve(b"long").unwrap().file).unwrap();
    assert_eq!(file.len().unwrap(), FILE_LEN_MAX);
    let mut end = [1; 3];
    file.read_at(&mut end, FILE_LEN_MAX - 3).unwrap();
    assert_eq!(&end, b"\0\0e");
    assert!(device.len().unwrap() < 1 << 20);
    assert!(matches!(pool.import(0).write_zeros(1), Err(Error::Invalid(_))));
}
