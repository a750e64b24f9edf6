//! A pool on a block device, as on a burned disc or a stick.

use super::loop_device::Loop;
use super::*;

/// Makes a pool with a database and a file, with some room behind it.
fn image_in(directory: &TempDir) -> PathBuf {
    let path = |name| directory.path().join(name);
    make_database(&path("a.db"), 4096, 500);
    write(&path("file"), &random_bytes(100_000, 1));
    hardpack().arg("create").arg(path("p.hpk")).assert().success();
    hardpack().args(["put", "-q"]).args(["a.db", "file", "p.hpk"].map(path)).assert().success();
    let file = std::fs::File::options().write(true).open(path("p.hpk")).unwrap();
    file.set_len(4 << 20).unwrap();
    path("p.hpk")
}

#[test]
fn what_can_be_read_is_checked() {
    let directory = tempfile::tempdir().unwrap();
    let Some(device) = Loop::of(&image_in(&directory)) else { return };
    let said = stdout_of(hardpack().args(["check"]).arg(&device.0));
    assert!(said.contains("a.db: not checked: ") && said.contains("block device"), "{said}");
    assert!(said.contains("no problems"), "{said}");
    let json = json_of(hardpack().args(["check", "--json"]).arg(&device.0));
    assert_eq!(
        (&json["ok"], json["integrity_unchecked"].as_array().unwrap().len()),
        (&true.into(), 1)
    );
}

/// The system lets anybody open such a device for writing, and refuses only the writes.
#[test]
fn one_that_refuses_writes_is_not_mounted_to_be_written() {
    if !can_mount() {
        return;
    }
    let directory = tempfile::tempdir().unwrap();
    let image = image_in(&directory);
    let before = read(&image);
    let Some(device) = Loop::with(&image, &["--read-only"]) else { return };
    let added = hardpack().arg("put").args([&image, &device.0.join("more")]).output().unwrap();
    let said = String::from_utf8_lossy(&added.stderr);
    assert!(added.status.code() == Some(3) && said.contains("read-only"), "{said}");
    let (from, to) = (device.0.to_str().unwrap(), directory.path().to_str().unwrap());
    fails(directory.path(), &["mount", from, to], 3, &["read-only"]);
    let mount = Mount::of_with(directory, device.0.clone(), &["-o", "ro"]);
    assert_eq!(read(&mount.at("file")), random_bytes(100_000, 1));
    assert_eq!(count_rows(&mount.at("a.db")), 500);
    let refused = std::fs::write(mount.at("new"), b"x").unwrap_err();
    assert_eq!(refused.raw_os_error(), Some(libc::EROFS));
    mount.unmount();
    drop(device);
    assert!(read(&image) == before);
}

#[test]
fn one_that_is_full_says_so_and_goes_on() {
    let directory = tempfile::tempdir().unwrap();
    let Some(device) = Loop::of(&image_in(&directory)) else { return };
    let large = directory.path().join("large");
    write(&large, &random_bytes(8 << 20, 2));
    let put = |name| hardpack().arg("put").args([&large, &device.0.join(name)]).output().unwrap();
    let said = String::from_utf8(put("large").stderr).unwrap();
    assert!(said.contains("no space left"), "{said}");
    write(&large, &random_bytes(1 << 20, 3));
    // The system does not say that a device is full, so one more attempt may fail.
    assert!((0..2).any(|_| put("smaller").status.success()));
    hardpack().args(["check", "-q"]).arg(&device.0).assert().success();
    hardpack().args(["rm", "-q"]).arg(device.0.join("file")).assert().success();
    assert!(stdout_of(hardpack().args(["ls"]).arg(&device.0)).contains("smaller"));
}
