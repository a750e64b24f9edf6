//! Compares a file of the VFS with a plain vector, and makes the same calls on hostile pools.
//!
//! The model is the table in `main_file/mod.rs`: xSync, CKPT_DONE and COMMIT_PHASETWO commit
//! writes, and so does SYNC if the transaction has a journal on disk; uncommitted writes are
//! dropped when the lock or the checkpoint ends. With an exclusive lock and without shared memory,
//! xTruncate after CKPT_DONE commits instead.

use std::ffi::{CString, c_int};
use std::path::Path;

use rusqlite::ffi;

use super::handle::Handle;
use crate::engine::image::forge;
use crate::engine::input::{Input, content};

const FILE_LEN_MAX: usize = 1 << 20;
const OP_COUNT_MAX: usize = 80;
/// Controls whose argument is a number or a place for one, and that do not touch the content.
const CONTROLS: [c_int; 8] = [
    ffi::SQLITE_FCNTL_LOCKSTATE,
    ffi::SQLITE_FCNTL_SIZE_HINT,
    ffi::SQLITE_FCNTL_CHUNK_SIZE,
    ffi::SQLITE_FCNTL_PERSIST_WAL,
    ffi::SQLITE_FCNTL_POWERSAFE_OVERWRITE,
    ffi::SQLITE_FCNTL_MMAP_SIZE,
    ffi::SQLITE_FCNTL_HAS_MOVED,
    ffi::SQLITE_FCNTL_BEGIN_ATOMIC_WRITE,
];

#[derive(Default)]
struct Model {
    bytes: Vec<u8>,
    committed: Vec<u8>,
    lock: c_int,
    journal_on_disk: bool,
    /// A checkpoint has begun and not ended: writes belong to it.
    checkpointing: bool,
    checkpoint_done: bool,
    /// The first region of the shared memory is there.
    is_mapped: bool,
}

impl Model {
    fn commit(&mut self) {
        self.committed.clone_from(&self.bytes);
    }

    fn finish(&mut self) {
        self.bytes.clone_from(&self.committed);
        self.journal_on_disk = false;
        self.checkpointing = false;
    }
}

fn text(bytes: &[u8]) -> CString {
    let end = bytes.iter().position(|byte| *byte == 0).unwrap_or(bytes.len());
    CString::new(&bytes[..end]).expect("the text ends before the first NUL")
}

fn pragma(file: &mut Handle, input: &mut Input<'_>) -> c_int {
    let known = ["compression", "recordsize", "checksum", "min_savings", "txg", "ratio", "version"];
    let mut name = b"hardpack_".to_vec();
    match input.below(known.len() + 1) {
        n if n < known.len() => name.extend_from_slice(known[n].as_bytes()),
        _ => name = input.short_bytes().to_vec(),
    }
    let values = ["lz4", "zstd-1", "off", "4K", "64K", "sha256", "10%", "inherit"];
    let value = match input.below(4) {
        0 => None,
        1 => Some(text(input.short_bytes())),
        _ => Some(text(input.pick(&values).as_bytes())),
    };
    file.pragma(&text(&name), value.as_ref())
}

fn compare(file: &mut Handle, model: &Model, at: usize, len: usize) {
    assert_eq!(file.size(), Ok(model.bytes.len() as i64));
    let mut bytes = vec![0xa5; len];
    let code = file.read(&mut bytes, at as i64);
    let there = &model.bytes[at.min(model.bytes.len())..(at + len).min(model.bytes.len())];
    let expected = if there.len() == len { ffi::SQLITE_OK } else { ffi::SQLITE_IOERR_SHORT_READ };
    assert_eq!(code, expected);
    assert!(bytes[..there.len()] == *there, "bytes {at} to {} are others", at + len);
    assert!(bytes[there.len()..].iter().all(|byte| *byte == 0), "a short read fills with zeros");
}

fn locks(file: &mut Handle, model: &mut Model, input: &mut Input<'_>) {
    if input.one_in(2) {
        let next = match model.lock {
            ffi::SQLITE_LOCK_NONE => ffi::SQLITE_LOCK_SHARED,
            // To roll back from a journal that it found, SQLite skips the reserved lock.
            ffi::SQLITE_LOCK_SHARED if input.one_in(4) => ffi::SQLITE_LOCK_EXCLUSIVE,
            ffi::SQLITE_LOCK_SHARED => ffi::SQLITE_LOCK_RESERVED,
            _ => ffi::SQLITE_LOCK_EXCLUSIVE,
        };
        // It does so to leave a log as well.
        model.journal_on_disk |= (model.lock, next)
            == (ffi::SQLITE_LOCK_SHARED, ffi::SQLITE_LOCK_EXCLUSIVE)
            && !model.is_mapped;
        assert_eq!(file.lock(next), ffi::SQLITE_OK);
        model.lock = next;
    } else {
        let level = input.pick(&[ffi::SQLITE_LOCK_NONE, ffi::SQLITE_LOCK_SHARED]);
        if model.lock > ffi::SQLITE_LOCK_SHARED {
            model.checkpoint_done = false;
            model.finish();
        }
        assert_eq!(file.unlock(level), ffi::SQLITE_OK);
        model.lock = model.lock.min(level);
    }
}

fn controls(file: &mut Handle, model: &mut Model, input: &mut Input<'_>) {
    match input.below(6) {
        0 => {
            let has_super_journal = input.one_in(2);
            assert_eq!(file.announce(has_super_journal), ffi::SQLITE_OK);
            if model.journal_on_disk || has_super_journal {
                model.commit();
            }
            model.journal_on_disk = has_super_journal;
        }
        1 => {
            assert_eq!(file.control(ffi::SQLITE_FCNTL_COMMIT_PHASETWO, 0), ffi::SQLITE_OK);
            model.checkpoint_done = false;
            // Writes of a failed checkpoint are no part of the transaction.
            if std::mem::take(&mut model.checkpointing) {
                model.bytes.clone_from(&model.committed);
            }
            model.commit();
            model.journal_on_disk = false;
        }
        2 => {
            assert_eq!(file.control(ffi::SQLITE_FCNTL_CKPT_START, 0), ffi::SQLITE_OK);
            model.checkpoint_done = false;
            model.checkpointing = true;
            model.bytes.clone_from(&model.committed);
        }
        3 => {
            assert_eq!(file.control(ffi::SQLITE_FCNTL_CKPT_DONE, 0), ffi::SQLITE_OK);
            model.checkpoint_done = true;
            if model.is_mapped || model.lock < ffi::SQLITE_LOCK_EXCLUSIVE {
                model.commit();
                model.checkpointing = false;
            }
        }
        _ => {
            let op = input.pick(&CONTROLS);
            let number = i64::from(input.u32());
            file.control(op, number);
        }
    }
}

fn shared_memory(file: &mut Handle, model: &mut Model, input: &mut Input<'_>) {
    match input.below(4) {
        0 => map(file, model, input.below(3) as c_int),
        1 => file.shm_barrier(),
        2 => {
            // Only mapped regions have locks.
            map(file, model, 0);
            let slot = input.below(8) as c_int;
            let kind = ffi::SQLITE_SHM_EXCLUSIVE;
            assert_eq!(file.shm_lock(slot, ffi::SQLITE_SHM_LOCK | kind), ffi::SQLITE_OK);
            if slot == 1 {
                model.checkpoint_done = false;
                model.finish();
            }
            assert_eq!(file.shm_lock(slot, ffi::SQLITE_SHM_UNLOCK | kind), ffi::SQLITE_OK);
        }
        _ => {
            file.shm_unmap();
            model.is_mapped = false;
        }
    }
}

fn map(file: &mut Handle, model: &mut Model, region: c_int) {
    let code = file.shm_map(region);
    model.is_mapped |= region == 0 && code == ffi::SQLITE_OK;
}

/// Makes any calls in any order, and compares with the model.
pub fn run(data: &[u8]) {
    let mut input = Input(data);
    let directory = tempfile::tempdir_in(scratch()).expect("a directory");
    let path = directory.path().join("pool");
    let quiet = || vec![(text(b"hardpack_background_cpu"), text(b"0%"))];
    let open = |path: &Path| Handle::open(path, &quiet()).expect("it opens");
    let mut file = open(&path);
    let mut model = Model::default();
    for _ in 0..OP_COUNT_MAX {
        if input.is_empty() {
            break;
        }
        let at = usize::from(input.u16()) * [1, 512, 4096][input.below(3)] % FILE_LEN_MAX;
        let len = [1, 100, 512, 4096, 30_000][input.below(5)];
        match input.u8() % 16 {
            0..4 => {
                let new = content(input.u16(), len);
                assert_eq!(file.write(&new, at as i64), ffi::SQLITE_OK);
                model.bytes.resize(model.bytes.len().max(at + len), 0);
                model.bytes[at..at + len].copy_from_slice(&new);
            }
            4 => {
                assert_eq!(file.truncate(at as i64), ffi::SQLITE_OK);
                model.bytes.resize(at, 0);
                if model.checkpoint_done && (model.checkpointing || model.is_mapped) {
                    model.commit();
                    model.checkpointing = false;
                }
            }
            5 => {
                assert_eq!(file.sync(), ffi::SQLITE_OK);
                model.commit();
            }
            6 | 7 => locks(&mut file, &mut model, &mut input),
            8 | 9 => controls(&mut file, &mut model, &mut input),
            10 => drop(pragma(&mut file, &mut input)),
            11 => shared_memory(&mut file, &mut model, &mut input),
            12 => {
                drop(file);
                model.finish();
                file = open(&path);
                model = Model {
                    bytes: model.committed.clone(),
                    committed: model.committed,
                    ..Model::default()
                };
            }
            13 => {
                file.facts();
                assert_ne!(file.read(&mut [0; 10], -1), ffi::SQLITE_OK);
                assert_ne!(file.write(&[0; 10], i64::MIN), ffi::SQLITE_OK);
            }
            _ => compare(&mut file, &model, at, len),
        }
    }
    compare(&mut file, &model, 0, FILE_LEN_MAX);
    drop(file);
    model.finish();
    compare(&mut open(&path), &model, 0, FILE_LEN_MAX);
}

/// Returns a directory, in memory if possible.
pub fn scratch() -> &'static Path {
    let memory = Path::new("/dev/shm");
    if memory.is_dir() { memory } else { Path::new("/tmp") }
}

/// Makes the calls that SQLite makes on a hostile pool. Errors are fine.
pub fn run_image(data: &[u8]) {
    let mut input = Input(data);
    let image = forge(&mut input);
    let directory = tempfile::tempdir_in(scratch()).expect("a directory");
    let path = directory.path().join("pool");
    std::fs::write(&path, image).expect("the image is written");
    for _ in 0..2 {
        let value = text(input.short_bytes());
        let parameters = [
            (text(b"hardpack_recordsize"), value),
            (text(b"hardpack_background_cpu"), text(b"0%")),
        ];
        let parameters = if input.one_in(3) { &parameters[..] } else { &parameters[1..] };
        let Ok(mut file) = Handle::open(&path, parameters) else { return };
        let _ = file.size();
        for at in (0..150_000).step_by(17_000) {
            file.read(&mut vec![0; 9000], at);
        }
        if file.lock(ffi::SQLITE_LOCK_SHARED) == ffi::SQLITE_OK {
            file.lock(ffi::SQLITE_LOCK_RESERVED);
            file.write(&content(9, 5000), (input.number() % (1 << 20)) as i64);
            pragma(&mut file, &mut input);
            file.truncate((input.number() % (1 << 20)) as i64);
            file.sync();
            file.unlock(ffi::SQLITE_LOCK_NONE);
        }
    }
}
