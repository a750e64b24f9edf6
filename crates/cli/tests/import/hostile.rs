//! Sources that are damaged, encrypted or not what they seem: each gives a message, and no pool.

use std::fs;
use std::path::Path;
use std::process::Command;

use crate::common::*;
use crate::{names_in, tool};

/// The source must be rejected with this code and text, and leave nothing behind.
fn rejected(bytes: &[u8], code: i32, text: &str) {
    let (directory, _) = directory_with("source", bytes);
    let at = directory.path();
    fails(at, &["import", "-q", "source", "p.hpk"], code, &["cannot import 'source': ", text]);
    assert_eq!(names_in(at), ["source"]);
    succeeds(at, &["create", "old.hpk"]);
    fails(at, &["import", "-q", "source", "old.hpk"], code, &["cannot import 'source': ", text]);
    succeeds(at, &["check", "-q", "old.hpk"]);
}

/// Makes an archive of a few files with a tool, and returns its bytes.
fn made_by(name: &str, arguments: &[&str]) -> Vec<u8> {
    let (directory, _) = directory_with("first", b"the content of a file");
    let at = directory.path();
    fs::write(at.join("second"), random_bytes(300_000, 1)).unwrap();
    tool(at, name, arguments);
    let files = ["out", "out.7z", "out.zip"].map(|name| at.join(name));
    fs::read(files.iter().find(|path| path.exists()).unwrap()).unwrap()
}

#[test]
fn sources_that_are_nothing() {
    rejected(b"", 3, "it is empty");
    rejected(b"P", 3, "none of the formats");
    rejected(&[0; 4096], 3, "none of the formats");
    rejected(&random_bytes(100_000, 3), 3, "none of the formats");
    let directory = tempfile::tempdir().unwrap();
    let at = directory.path();
    fs::create_dir(at.join("dir")).unwrap();
    fails(at, &["import", "dir", "p.hpk"], 3, &["it is a directory", "hardpack put"]);
    fails(at, &["import", "missing", "p.hpk"], 3, &["cannot import 'missing': No such file"]);
    fails(at, &["import", "-", "p.hpk"], 3, &["must be a file", "put --tar -"]);
    fails(at, &["import", "/dev/null", "p.hpk"], 3, &["not a regular file"]);
    succeeds(at, &["create", "q.hpk"]);
    fails(at, &["import", "q.hpk", "p.hpk"], 3, &["a pool already", "hardpack cp"]);
    // A destination that is no pool.
    fs::write(at.join("text"), "text").unwrap();
    tool(at, "tar", &["-cf", "t", "text"]);
    fails(at, &["import", "t", "text"], 4, &["not a Hardpack pool"]);
    fails(at, &["import", "t", "no/such.hpk"], 3, &["no such directory or pool"]);
    assert_eq!(names_in(at), ["dir", "q.hpk", "t", "text"]);
}

#[test]
fn streams_that_end_early() {
    for (options, text) in [
        ("-cf", "the stream ends"),
        ("-czf", ""),
        ("-cJf", "'xz' failed"),
        ("-cjf", "'bzip2' failed"),
    ] {
        let bytes = made_by("tar", &[options, "out", "first", "second"]);
        for end in [bytes.len() / 3, bytes.len() - 5] {
            let is_padding = options == "-cf" && end == bytes.len() - 5;
            if !is_padding {
                rejected(&bytes[..end], 1, text);
            }
        }
    }
    let bytes = made_by("tar", &["--zstd", "-cf", "out", "first", "second"]);
    rejected(&bytes[..bytes.len() / 2], 1, "ends");
    // What is compressed is no tar stream.
    rejected(b"\x28\xb5\x2f\xfd\x04\x58\x31\0\0nothing\x3d\x0c\x32\x9a", 1, "");
}

#[test]
fn bytes_that_changed() {
    for options in ["-czf", "-cJf", "-cjf"] {
        let mut bytes = made_by("tar", &[options, "out", "first", "second"]);
        let at = bytes.len() / 2;
        bytes[at] ^= 0x55;
        rejected(&bytes, 1, "");
    }
    let mut bytes = made_by("7zz", &["a", "-bso0", "-bsp0", "out.7z", "first", "second"]);
    let at = bytes.len() / 2;
    bytes[at] ^= 0x55;
    rejected(&bytes, 1, "'bsdtar' failed");
    let options = ["-quiet", "-no-progress"];
    let mut bytes = made_by("mksquashfs", &[&["first", "second", "out"], &options[..]].concat());
    // A block of text, and then the table of inodes.
    let (directory, path) = directory_with("text", &b"some text\n".repeat(50_000));
    tool(directory.path(), "mksquashfs", &["text", "out", "-quiet", "-no-progress"]);
    let mut image = fs::read(path.with_file_name("out")).unwrap();
    image[150] ^= 0x55;
    rejected(&image, 1, "'sqfs2tar' failed");
    let at = u64::from_le_bytes(bytes[64..72].try_into().unwrap()) as usize;
    bytes[at + 3] ^= 0xff;
    rejected(&bytes, 1, "'sqfs2tar' failed");
}

#[test]
fn images_that_end_early() {
    let bytes = made_by("7zz", &["a", "-bso0", "-bsp0", "out.7z", "first", "second"]);
    rejected(&bytes[..bytes.len() / 2], 1, "'bsdtar' failed");
    let options = ["-quiet", "-no-progress"];
    let bytes = made_by("mksquashfs", &[&["first", "second", "out"], &options[..]].concat());
    rejected(&bytes[..bytes.len() / 2], 1, "'sqfs2tar' failed");
}

#[test]
fn encrypted_archives_are_refused() {
    let bytes = made_by("zip", &["-q", "-P", "secret", "out", "first", "second"]);
    rejected(&bytes, 3, "'first': it is encrypted, and passwords are not supported");
    for names in ["-mhe=off", "-mhe=on"] {
        let arguments = ["a", "-bso0", "-bsp0", "-psecret", names, "out.7z", "first", "second"];
        rejected(&made_by("7zz", &arguments), 1, "encrypted");
    }
}

/// A program that fails in the end has failed, whatever it wrote before.
#[test]
fn the_status_of_a_program_counts() {
    let (directory, path) = directory_with("image", b"DWARFS\x02\x05");
    let at = directory.path();
    fs::write(at.join("file"), "content").unwrap();
    tool(at, "tar", &["-cf", "stream", "file"]);
    let program = at.join("dwarfsextract");
    let script =
        format!("#!/bin/sh\ncat '{}/stream'\necho a block is damaged >&2\nexit 2\n", at.display());
    write_program(&program, &script);
    let search = format!("{}:{}", at.display(), std::env::var("PATH").unwrap());
    let pool = at.join("p.hpk");
    let stderr =
        stderr_of(hardpack().env("PATH", search).args(["import", "-q"]).args([&path, &pool]), 1);
    assert!(
        stderr.contains("'dwarfsextract' failed (exit status: 2): a block is damaged"),
        "{stderr}"
    );
    assert!(!pool.exists());
    names_in(at);
}

/// Imports with little memory for addresses.
fn import_in(directory: &Path, kib: u32, source: &str, code: i32) -> String {
    let program = assert_cmd::cargo::cargo_bin!("hardpack");
    let script = format!("ulimit -v {kib}; exec \"$0\" import -q -j 1 {source} {source}.hpk");
    let mut command = Command::new("sh");
    command.current_dir(directory).args(["-c", &script]).arg(program);
    let output = command.output().unwrap();
    let stderr = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(code), "{stderr}");
    stderr
}

/// The path of each of these files has names of 250 bytes, a thousand of them.
#[test]
fn deep_directories_take_little_memory() {
    let directory = tempfile::tempdir().unwrap();
    let mut stream = tar::Builder::new(fs::File::create(directory.path().join("deep")).unwrap());
    for file in 0..20 {
        let names = (0..1000).map(|level| format!("{file:03}{level:0247}/"));
        let path = names.collect::<String>() + "file";
        let mut header = tar::Header::new_gnu();
        header.set_size(7);
        header.set_mode(0o644);
        header.set_uid(0);
        header.set_gid(0);
        header.set_mtime(0);
        stream.append_data(&mut header, path, &b"content"[..]).unwrap();
    }
    stream.finish().unwrap();
    import_in(directory.path(), 1 << 20, "deep", 0);
    succeeds(directory.path(), &["check", "-q", "deep.hpk"]);
}

/// A lack of memory says nothing about the archive.
#[test]
fn a_window_beyond_the_memory_is_no_damage() {
    // A frame whose window is 2 GiB, with one block of a stream's end mark.
    let header = [0x28, 0xb5, 0x2f, 0xfd, 0, (31 - 10) << 3];
    let block = [&((1024_u32 << 3 | 1).to_le_bytes()[..3]), &[0; 1024]].concat();
    let (directory, _) = directory_with("wide", &[&header[..], &block].concat());
    let told = import_in(directory.path(), 1 << 20, "wide", 3);
    assert!(told.contains("Cannot allocate memory"), "{told}");
    assert_eq!(names_in(directory.path()), ["wide"]);
}

/// Some programs leave fields empty that do not matter elsewhere: packages of npm have no owners.
#[test]
fn blank_fields_are_zero() {
    for blank in [0, b' '] {
        let mut header = tar::Header::new_ustar();
        header.set_path("file").unwrap();
        let old = header.as_old_mut();
        for field in [&mut old.mode[..], &mut old.uid, &mut old.gid, &mut old.mtime] {
            field.fill(blank);
        }
        header.set_size(0);
        header.set_cksum();
        let (directory, _) = directory_with("t", &[header.as_bytes(), &[0; 1024][..]].concat());
        succeeds(directory.path(), &["import", "-q", "t", "p.hpk"]);
        assert_eq!(succeeds(directory.path(), &["ls", "p.hpk"]), "file\n");
    }
}
