//! ZIP archives written byte by byte, with what no tool would write.

use std::fs;
use std::path::PathBuf;

use tempfile::TempDir;

use crate::common::*;
use crate::{names_in, tool};

/// An entry to write.
#[derive(Clone)]
struct Entry {
    name: Vec<u8>,
    /// The name before the content.
    local_name: Vec<u8>,
    system: u8,
    mode: u32,
    flags: u16,
    method: u16,
    content: Vec<u8>,
    len: u32,
    crc: u32,
    fields: Vec<u8>,
}

fn entry(name: impl AsRef<[u8]>, mode: u32, content: &[u8]) -> Entry {
    let mut crc = flate2::Crc::new();
    crc.update(content);
    Entry {
        name: name.as_ref().to_vec(),
        local_name: name.as_ref().to_vec(),
        system: 3,
        mode,
        flags: 0,
        method: 0,
        content: content.to_vec(),
        len: content.len() as u32,
        crc: crc.sum(),
        fields: Vec::new(),
    }
}

fn file(name: impl AsRef<[u8]>, content: &[u8]) -> Entry {
    entry(name, 0o100_640, content)
}

fn archive(entries: &[Entry]) -> Vec<u8> {
    let (mut bytes, mut directory) = (Vec::new(), Vec::new());
    for entry in entries {
        let at = bytes.len() as u32;
        let date = ((2026 - 1980) << 9) | (11 << 5) | 23;
        let mut common =
            [20, entry.flags, entry.method, 12 << 11, date].map(u16::to_le_bytes).concat();
        let lens = [entry.crc, entry.content.len() as u32, entry.len].map(u32::to_le_bytes);
        common.extend_from_slice(&lens.concat());
        let len = |bytes: &[u8]| (bytes.len() as u16).to_le_bytes();
        let local = [
            b"PK\x03\x04",
            &common[..],
            &len(&entry.local_name),
            &[0, 0],
            &entry.local_name,
            &entry.content,
        ];
        bytes.extend_from_slice(&local.concat());
        let described = [
            &b"PK\x01\x02\x14"[..],
            &[entry.system],
            &common,
            &len(&entry.name),
            &len(&entry.fields),
            &[0; 6],
            &(entry.mode << 16).to_le_bytes(),
            &at.to_le_bytes(),
            &entry.name,
            &entry.fields,
        ];
        directory.extend_from_slice(&described.concat());
    }
    let count = (entries.len() as u16).to_le_bytes();
    let (at, len) = ((bytes.len() as u32).to_le_bytes(), (directory.len() as u32).to_le_bytes());
    let end = [b"PK\x05\x06\0\0\0\0", &count[..], &count, &len, &at, &[0, 0]].concat();
    [bytes, directory, end].concat()
}

fn written(entries: &[Entry]) -> (TempDir, PathBuf) {
    directory_with("a.zip", &archive(entries))
}

/// Imports entries, all of which can be stored, and returns the lines of a listing.
fn listing(entries: &[Entry]) -> (TempDir, Vec<String>) {
    let (directory, _) = written(entries);
    let at = directory.path();
    succeeds(at, &["import", "-q", "a.zip", "p.hpk"]);
    succeeds(at, &["check", "-q", "p.hpk"]);
    let lines = succeeds(at, &["find", "p.hpk"]).lines().map(str::to_owned).collect();
    (directory, lines)
}

/// Imports entries, which must fail with this code and text, and leave nothing.
fn rejected(bytes: &[u8], code: i32, text: &str) {
    let (directory, _) = directory_with("a.zip", bytes);
    let at = directory.path();
    fails(at, &["import", "-q", "--from", "zip", "a.zip", "p.hpk"], code, &[text]);
    assert_eq!(names_in(at), ["a.zip"]);
    // In a pool that exists, the same, and the pool is whole.
    succeeds(at, &["create", "old.hpk"]);
    fails(at, &["import", "-q", "--from", "zip", "a.zip", "old.hpk"], code, &[text]);
    succeeds(at, &["check", "-q", "old.hpk"]);
}

#[test]
fn nothing_leads_outside() {
    let entries = [
        file("../above", b"1"),
        file("a/../../above", b"2"),
        file("/absolute/name", b"3"),
        file("a//./b", b"4"),
        entry("link", 0o120_777, b"/etc"),
        file("link/passwd", b"5"),
        file("plain", b"6"),
        file("plain/below", b"7"),
        entry("pipe", 0o010_644, b""),
        entry("device", 0o020_644, b""),
    ];
    let (directory, _) = written(&entries);
    let at = directory.path();
    let stderr = fails(
        at,
        &["import", "-q", "a.zip", "p.hpk/in"],
        3,
        &[
            "note: skipped '../above': its path leads outside",
            "note: skipped 'a/../../above': its path leads outside",
            "note: skipped 'device': a device without a number",
            "cannot put 'in/link/passwd': 'in/link' is a symbolic link, and nothing is put through it",
            "cannot put 'in/plain/below': 'in/plain' is not a directory",
        ],
    );
    assert_eq!(stderr.lines().count(), 5, "{stderr}");
    let mut names: Vec<_> =
        succeeds(at, &["find", "p.hpk/in"]).lines().map(str::to_owned).collect();
    names.sort();
    let expected = ["", "/a", "/a/b", "/absolute", "/absolute/name", "/link", "/pipe", "/plain"];
    assert_eq!(names, expected.map(|name| format!("p.hpk/in{name}")));
    assert_eq!(succeeds(at, &["cat", "p.hpk/in/plain"]), "6");
}

#[test]
fn the_last_of_equal_names_remains() {
    let entries = [
        file("a", b"first"),
        file("a", b"second"),
        file("b", b"a file"),
        entry("b", 0o120_777, b"a"),
        entry("c", 0o120_777, b"a"),
        file("c", b"no link"),
    ];
    let (directory, names) = listing(&entries);
    assert_eq!(names.len(), 4, "{names:?}");
    let cat = |name: &str| succeeds(directory.path(), &["cat", name]);
    assert_eq!((cat("p.hpk/a"), cat("p.hpk/c")), ("second".into(), "no link".into()));
    let link = succeeds(directory.path(), &["ls", "-l", "p.hpk/b"]);
    assert!(link.starts_with('l') && link.ends_with("b -> a\n"), "{link}");
}

#[test]
fn names_and_times_of_all_systems() {
    let dos = |name: &[u8]| Entry { system: 0, mode: 0, ..file(name, b"x") };
    let mut unicode = Entry { flags: 0, ..dos(b"?") };
    let mut crc = flate2::Crc::new();
    crc.update(b"?");
    let field = [&[1][..], &crc.sum().to_le_bytes(), "ö".as_bytes()].concat();
    unicode.fields =
        [&0x7075_u16.to_le_bytes()[..], &(field.len() as u16).to_le_bytes(), &field].concat();
    let unix_time = [b"UT\x05\0\x03".as_slice(), &(-5_i32).to_le_bytes()].concat();
    let ticks: u64 = 116_444_736_000_000_000 + 12_345_678_901_234_567;
    let ntfs_time =
        [b"\x0a\0\x20\0\0\0\0\0\x01\0\x18\0".as_slice(), &ticks.to_le_bytes(), &[0; 16]].concat();
    let entries = [
        dos(b"Gr\x94\xe1e"),
        dos(b"sub\\dir\\file"),
        unicode,
        Entry { fields: unix_time, ..file("before 1970", b"x") },
        Entry { fields: ntfs_time, ..file("exact", b"x") },
        file(b"\xff", b"x"),
        file("back\\slash", b"x"),
        entry("directory/", 0o040_700, b""),
    ];
    let (directory, _) = written(&entries);
    let at = directory.path();
    let mut import = hardpack();
    import.current_dir(at).env("TZ", "Etc/GMT-3").args(["import", "-q", "a.zip", "p.hpk"]);
    import.assert().success();
    let stat = |name: &str| json_of(hardpack().current_dir(at).args(["stat", "--json", name]));
    for name in ["Größe", "sub/dir/file", "ö"] {
        succeeds(at, &["stat", &format!("p.hpk/{name}")]);
    }
    let time = |name: &str| stat(&format!("p.hpk/{name}"))["modified_ns"].as_i64();
    assert_eq!(time("before 1970"), Some(-5_000_000_000));
    assert_eq!(time("exact"), Some(1_234_567_890_123_456_700));
    // 12:00 on 2026-11-23, three hours east of Greenwich.
    assert_eq!(time("Größe"), Some(1_795_424_400_000_000_000));
    let names = hardpack().current_dir(at).args(["ls", "p.hpk"]).output().unwrap().stdout;
    let names: Vec<&[u8]> = names.split(|byte| *byte == b'\n').collect();
    assert!(names.contains(&&b"\xff"[..]) && names.contains(&&b"back\\slash"[..]), "{names:?}");
    assert_eq!(names.len(), 9, "{names:?}");
}

#[test]
fn damage_is_found() {
    let good = [file("first", b"content"), file("second", b"more of it")];
    let bytes = archive(&good);
    for end in [0, 1, 10, 30, bytes.len() / 2, bytes.len() - 30, bytes.len() - 1] {
        let text = if end == 0 { "no directory" } else { "a.zip" };
        rejected(&bytes[..end], 1, text);
    }
    let with = |change: &dyn Fn(&mut Entry)| {
        let mut entries = good.clone();
        change(&mut entries[1]);
        archive(&entries)
    };
    rejected(&with(&|entry| entry.crc ^= 1), 1, "'second': its checksum does not match");
    rejected(&with(&|entry| entry.len = 3), 1, "'second': its length is wrong");
    rejected(&with(&|entry| entry.len = 300), 1, "'second': its length is wrong");
    rejected(&with(&|entry| entry.local_name = b"other".to_vec()), 1, "another than the directory");
    rejected(&with(&|entry| entry.flags = 1), 3, "'second': it is encrypted");
    rejected(&with(&|entry| entry.method = 8), 1, "'second': ");
    rejected(&with(&|entry| entry.method = 93), 1, "'second': ");
    rejected(&with(&|entry| entry.method = 14), 3, "method 14");
    rejected(&with(&|entry| entry.name = b"a\0b".to_vec()), 1, "another than the directory");
    rejected(
        &with(&|entry| (entry.name, entry.local_name) = (b"a\0b".to_vec(), b"a\0b".to_vec())),
        3,
        "",
    );
    rejected(&with(&|entry| (entry.mode, entry.len) = (0o120_777, 1 << 20)), 1, "too long");
    // The number of entries, and the place of the directory.
    for (from_end, value) in [(12, 9), (10, 255), (6, 255)] {
        let mut bytes = bytes.clone();
        let at = bytes.len() - from_end;
        bytes[at] = value;
        rejected(&bytes, 1, "a.zip");
    }
}

/// Every byte of an archive may be anything: that is an error, or another file, but no panic.
#[test]
fn any_byte_may_be_wrong() {
    let bytes = archive(&[file("first", b"content"), entry("l", 0o120_777, b"first")]);
    let (directory, path) = directory_with("a.zip", b"");
    for at in 0..bytes.len() {
        let mut bytes = bytes.clone();
        bytes[at] ^= 0xff;
        fs::write(&path, &bytes).unwrap();
        let pool = directory.path().join("p.hpk");
        let mut import = hardpack();
        let done =
            import.args(["import", "-q", "--from", "zip"]).args([&path, &pool]).output().unwrap();
        let code = done.status.code().unwrap();
        assert!([0, 1, 3].contains(&code), "byte {at}: {code}");
        let _ = fs::remove_file(&pool);
        assert_eq!(names_in(directory.path()), ["a.zip"]);
    }
}

#[test]
fn very_deep_and_very_long_names() {
    let deep = "d/".repeat(3000) + "file";
    let (directory, _) = written(&[file(&deep, b"deep"), file("n".repeat(255), b"long")]);
    let at = directory.path();
    let output =
        hardpack().current_dir(at).args(["import", "-q", "a.zip", "p.hpk"]).output().unwrap();
    // Whatever the pool makes of it, it is whole.
    if output.status.success() {
        succeeds(at, &["check", "-q", "p.hpk"]);
        assert_eq!(succeeds(at, &["cat", &format!("p.hpk/{deep}")]), "deep");
    } else {
        assert_eq!(output.status.code(), Some(3), "{}", String::from_utf8_lossy(&output.stderr));
    }
    rejected(&archive(&[file("n".repeat(5000), b"too long")]), 3, "");
}

#[test]
fn entries_compressed_with_zstd() {
    let (directory, path) = directory_with("content", &b"what is repeated, ".repeat(10_000));
    let at = directory.path();
    tool(at, "zstd", &["-q", "content"]);
    let content = fs::read(&path).unwrap();
    let mut entry = file("file", &content);
    entry.content = fs::read(at.join("content.zst")).unwrap();
    entry.method = 93;
    fs::write(at.join("a.zip"), archive(&[entry])).unwrap();
    succeeds(at, &["import", "-q", "a.zip", "p.hpk"]);
    assert!(succeeds(at, &["cat", "p.hpk/file"]).as_bytes() == content);
}
