//! `hardpack mount` and `umount`. Without `--foreground`, the command starts itself again as a
//! server, and ends when that one says that the mount is there.

mod listed;
mod look;
mod marks;
mod stuck;

use std::fs::{self, File};
use std::io::{self, Read, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, Stdio};
use std::sync::Arc;
use std::time::Duration;

use hardpack_engine::device::FileDevice;
use hardpack_engine::pool::{FileOwner, Kind};
use hardpack_mount::{FailMode, Flag, Leases, Marks, MountOptions, Mounted, NoMarks, SERVER_XATTR};
use rustix::io::Errno;
use rustix::mount::UnmountFlags;
use rustix::process::{Pid, PidfdFlags};

use self::listed::{device_of, is_anywhere};
use self::look::{Looked, look_at, tell_look, without_links};
use self::marks::{FileLeases, OpenMarks};
use crate::args::{MountArgs, UmountArgs};
use crate::failure::{Cannot, Code, Failure, Reason};
use crate::{output, sys, text};

/// What the server says when the mount is there.
const READY: &[u8] = b"mounted\n";
/// How long `umount` waits for the server to end.
const END_TIME: Duration = Duration::from_secs(60);
/// How long `umount` waits for the server's first answer. It may be busy with large commits.
const ANSWER_TIME: Duration = Duration::from_secs(10);
/// How long `umount --lazy` waits: without an answer, it leaves everything to the server.
const LAZY_ANSWER_TIME: Duration = Duration::from_secs(2);
/// The reason for a directory without a mount of ours.
const NO_POOL: &str = "no pool is mounted there";
/// The device through which file systems are served.
const FUSE_DEVICE: &str = "/dev/fuse";
/// Where the kernel lists what is served, by the minor numbers of its file systems.
const FUSE_CONNECTIONS: &str = "/sys/fs/fuse/connections";
/// How long `umount --force` waits for changes to be written.
const FORCE_TIME: Duration = Duration::from_secs(30);
/// What unmounts for users without privileges.
const HELPER: &str = "fusermount3";

pub fn mount(args: &MountArgs) -> Result<ExitCode, Failure> {
    match args.foreground || args.serve {
        true => serve(args).cannot("mount", &args.pool)?,
        false => return start(args).cannot("mount", &args.pool),
    }
    Ok(ExitCode::SUCCESS)
}

/// Starts the server, and waits until the mount is there.
fn start(args: &MountArgs) -> Result<ExitCode, Reason> {
    let program = std::env::current_exe()?;
    let mut server = Command::new(program);
    server.arg("mount").arg("--serve");
    server.args(["--options", &args.options.join(",")]);
    server.args(args.allow_other.then_some("--allow-other"));
    server.args(args.replace.then_some("--replace"));
    server.args(args.threads.map(|threads| format!("--threads={threads}")));
    server.arg("--").arg(args.pool.given()).arg(&args.directory);
    server.stdin(Stdio::null()).stdout(Stdio::piped());
    // What the caller has open would stay open as long as the mount: a pipe would have no end.
    sys::keep_descriptors_from_programs();
    let mut server = server.spawn()?;
    let mut said = Vec::new();
    if let Some(mut output) = server.stdout.take() {
        output.read_to_end(&mut said)?;
    }
    if said == READY {
        return Ok(ExitCode::SUCCESS);
    }
    // It has said why.
    let status = server.wait()?;
    let code = status.code().and_then(|code| u8::try_from(code).ok());
    Ok(ExitCode::from(code.filter(|code| *code != 0).unwrap_or(Code::Internal as u8)))
}

/// Mounts and serves.
fn serve(args: &MountArgs) -> Result<(), Reason> {
    let signals = sys::block_ending_signals()?;
    let wanted = Wanted::from(args)?;
    let (directory, has_replaced) = prepare_directory(&args.directory, args.replace)?;
    let mut opened = args.pool.open(None)?;
    if opened.live().is_some() && !wanted.read_only {
        opened = args.pool.open_writable(None).map_err(or_reading)?;
    }
    let root = opened.entry()?;
    if root.kind != Kind::Directory {
        return Err(Reason::new(Code::Cannot, "only a directory can be mounted")
            .hint("mount the pool, or a directory in it"));
    }
    let is_read_only = wanted.read_only || opened.live().is_none();
    let mut options = wanted.options(&args.pool.pool, is_read_only, args.threads)?;
    if has_replaced {
        options.inode_generation = any_generation()?;
    }
    let marks: Arc<dyn Marks> = match is_read_only {
        true => Arc::new(NoMarks),
        false => Arc::new(OpenMarks {
            device: FileDevice::open(&args.pool.pool)?,
            path: fs::canonicalize(&args.pool.pool)?,
            pool: opened.pool.clone(),
        }),
    };
    let mounted = hardpack_mount::mount(opened.pool, root.file, marks, &directory, options)?;
    let mounted = mounted.map_err(|error| refused(&error, &directory))?;
    end_at_signals(signals, directory);
    if args.serve {
        detach()?;
    }
    wait(mounted)
}

/// What the error of a pool that cannot be written leaves is to read it.
fn or_reading(reason: Reason) -> Reason {
    match reason.is_read_only() {
        true => reason.hint("'-o ro' mounts it for reading"),
        false => reason,
    }
}

fn wait(mounted: Mounted) -> Result<(), Reason> {
    Ok(mounted.join()?)
}

/// Unmounts when a signal asks for the end; the second one does so even if programs use the mount.
fn end_at_signals(signals: sys::EndingSignals, directory: PathBuf) {
    // Without the thread the signals stay blocked, and `umount` still works.
    let _ = std::thread::Builder::new().name("signals".into()).spawn(move || {
        let mut lazily = false;
        while signals.wait(None) {
            if let Err(reason) = unmount(&directory, lazily) {
                output::tell(format_args!("note: {}", reason.text));
            }
            lazily = true;
        }
    });
}

/// Says that the mount is there, and leaves the terminal and the session of the caller.
fn detach() -> Result<(), Reason> {
    let mut output = io::stdout();
    output.write_all(READY)?;
    output.flush()?;
    let nowhere = File::options().read(true).write(true).open("/dev/null")?;
    // These fail only for descriptors that are not open.
    let _ = rustix::stdio::dup2_stdout(&nowhere);
    let _ = rustix::stdio::dup2_stderr(&nowhere);
    // The leader of a process group cannot leave its session, and then it has one of its own.
    let _ = rustix::process::setsid();
    std::env::set_current_dir("/")?;
    Ok(())
}

/// What the options ask for.
#[derive(Default)]
struct Wanted {
    read_only: bool,
    allow_other: bool,
    flags: Vec<Flag>,
    fail_mode: FailMode,
    /// Locks exclude the programs of other mounts too.
    has_pool_locks: bool,
    uid: Option<u32>,
    gid: Option<u32>,
}

impl Wanted {
    fn from(args: &MountArgs) -> Result<Wanted, Reason> {
        let mut wanted = Wanted { allow_other: args.allow_other, ..Wanted::default() };
        for option in args.options.iter().filter(|option| !option.is_empty()) {
            match option.split_once('=').unwrap_or((option, "")) {
                ("ro", "") => wanted.read_only = true,
                ("rw", "") => wanted.read_only = false,
                ("allow_other", "") => wanted.allow_other = true,
                ("noexec", "") => wanted.flags.push(Flag::NoExec),
                ("nosuid", "") => wanted.flags.push(Flag::NoSuid),
                // The last one counts.
                ("dev" | "nodev", "") => {
                    let is_other = |flag: &Flag| !matches!(flag, Flag::Dev | Flag::NoDev);
                    wanted.flags.retain(is_other);
                    wanted.flags.push(if option == "dev" { Flag::Dev } else { Flag::NoDev });
                }
                ("noatime" | "relatime" | "nodiratime", "") => wanted.flags.push(Flag::NoAtime),
                // What fstab says to mount(8) itself.
                (
                    "defaults" | "auto" | "noauto" | "nofail" | "_netdev" | "user" | "users"
                    | "exec" | "suid",
                    "",
                ) => {}
                (name, _) if name.starts_with("x-") || name.starts_with("comment") => {}
                ("failmode", "continue") => wanted.fail_mode = FailMode::Continue,
                ("failmode", "stop") => wanted.fail_mode = FailMode::Stop,
                ("failmode", _) => {
                    let text = format!("'{option}' is neither failmode=continue nor failmode=stop");
                    return Err(Reason::new(Code::Cannot, text));
                }
                ("locks", "local") => wanted.has_pool_locks = false,
                ("locks", "pool") => wanted.has_pool_locks = true,
                ("uid", number) => wanted.uid = Some(numeric(option, number)?),
                ("gid", number) => wanted.gid = Some(numeric(option, number)?),
                _ => {
                    let text = format!("there is no option '{option}'");
                    return Err(Reason::new(Code::Cannot, text)
                        .hint("'hardpack mount --help' lists the options"));
                }
            }
        }
        Ok(wanted)
    }

    fn options(
        self,
        pool: &Path,
        read_only: bool,
        threads: Option<u16>,
    ) -> Result<MountOptions, Reason> {
        let owner = FileOwner {
            uid: self.uid.unwrap_or_else(|| rustix::process::getuid().as_raw()),
            gid: self.gid.unwrap_or_else(|| rustix::process::getgid().as_raw()),
        };
        let default = MountOptions::new(fs::canonicalize(pool)?);
        let threads = threads.map_or(default.threads, usize::from);
        let leases: Option<Arc<dyn Leases>> = match self.has_pool_locks {
            true => Some(Arc::new(FileLeases(FileDevice::open(pool)?))),
            false => None,
        };
        let (allow_other, flags, fail_mode) = (self.allow_other, self.flags, self.fail_mode);
        Ok(MountOptions {
            read_only,
            allow_other,
            flags,
            fail_mode,
            owner,
            leases,
            threads,
            ..default
        })
    }
}

fn numeric(option: &str, number: &str) -> Result<u32, Reason> {
    let wrong = || Reason::new(Code::Cannot, format!("'{option}' does not name a number"));
    number.parse().map_err(|_| wrong())
}

/// Returns a generation of inode numbers that a dead mount is unlikely to have had. A mount that
/// replaces nothing has 0.
fn any_generation() -> Result<u16, Reason> {
    let mut random = [0; 2];
    getrandom::fill(&mut random)
        .map_err(|error| Reason::new(Code::Cannot, format!("no random numbers: {error}")))?;
    // Programs may take the numbers for signed ones.
    Ok((u16::from_le_bytes(random) >> 1).max(1))
}

/// Returns the full path of the directory to mount on, and whether a dead mount was removed.
fn prepare_directory(directory: &Path, replace: bool) -> Result<(PathBuf, bool), Reason> {
    let shown = text::path(directory);
    let whole = without_links(directory);
    let has_died = device_of(&whole)?.is_some()
        && match look_at(&whole, ANSWER_TIME)? {
            Some(looked) => matches!(looked, Looked::Dead),
            None if is_stuck(&whole)? => true,
            None => return Err(silent()),
        };
    if has_died {
        if !replace {
            let text = format!("a mount on '{shown}' has died and is still there");
            return Err(Reason::new(Code::Cannot, text)
                .hint("'hardpack mount --replace' takes its place, 'hardpack umount' removes it"));
        }
        remove_dead(&whole)?;
    }
    match fs::metadata(directory) {
        Ok(metadata) if !metadata.is_dir() => {
            return Err(Reason::new(Code::Cannot, format!("'{shown}' is not a directory")));
        }
        Err(error) => return Err(Reason::from(error).about(directory)),
        Ok(_) => {}
    }
    let directory = fs::canonicalize(directory).map_err(|e| Reason::from(e).about(directory))?;
    if is_mounted(&directory)? {
        let text = format!("a pool is mounted on '{shown}' already");
        return Err(Reason::new(Code::InUse, text).hint("'hardpack umount' removes it"));
    }
    Ok((directory, has_died))
}

/// Whether a pool is mounted on a directory.
fn is_mounted(directory: &Path) -> Result<bool, Reason> {
    Ok(device_of(directory)?.is_some() && server_number(directory).is_some())
}

/// Explains why the kernel refuses a mount.
fn refused(error: &io::Error, directory: &Path) -> Reason {
    if !Path::new(FUSE_DEVICE).exists() {
        let text = format!("this system has no FUSE: {FUSE_DEVICE} is missing");
        return Reason::new(Code::Cannot, text)
            .hint("load the module with 'modprobe fuse', or give the container that device");
    }
    let is_root = rustix::process::geteuid().is_root();
    let text = format!("the kernel refuses: {}", error.to_string().trim_end());
    match error.kind() {
        io::ErrorKind::NotFound if !is_root => Reason::new(Code::Cannot, text)
            .hint(format!("without root, mounting needs {HELPER}: install the package fuse3")),
        _ if !is_root => Reason::new(Code::Cannot, text)
            .hint("is the directory yours? --allow-other needs user_allow_other in /etc/fuse.conf"),
        _ => Reason::new(Code::Cannot, text).about(directory),
    }
}

pub fn umount(args: &UmountArgs) -> Result<ExitCode, Failure> {
    if args.look {
        return tell_look(args).cannot("look at", text::path(&args.directory));
    }
    umount_and_wait(args).cannot("unmount", text::path(&args.directory))
}

fn umount_and_wait(args: &UmountArgs) -> Result<ExitCode, Reason> {
    let whole = without_links(&args.directory);
    let time = if args.lazy { LAZY_ANSWER_TIME } else { ANSWER_TIME };
    let directory = match look_at(&whole, time)? {
        Some(Looked::Dead) => return unmount(&whole, true).map(|()| ExitCode::SUCCESS),
        Some(Looked::Private) => return umount_private(&whole, args),
        Some(Looked::At(_)) if args.force => return umount_by_force(&whole),
        Some(Looked::At(_)) if args.lazy => return umount_lazily(&whole),
        Some(Looked::At(found)) => found,
        Some(Looked::Nothing(reason)) => return Err(Reason::new(Code::Cannot, reason)),
        // What is silent may be another file system.
        None if device_of(&whole)?.is_none() => {
            return Err(Reason::new(Code::Cannot, NO_POOL));
        }
        None if args.force || is_stuck(&whole)? => {
            return abort(&whole).map(|()| ExitCode::SUCCESS);
        }
        // Its bytes stay with the server, which commits them if it ever goes on.
        None if args.lazy => return unmount(&whole, true).map(|()| ExitCode::SUCCESS),
        None => return Err(silent()),
    };
    let server = server_number(&directory).and_then(open_process);
    let device = device_of(&directory)?;
    // Errors of writing are told here, while there is somebody to be told.
    let synced = File::open(&directory)?.sync_all();
    unmount(&directory, false)?;
    let ended = wait_for_end(server.as_slice(), device.as_deref());
    // Staying mounted would bring back nothing of what could not be written.
    synced.map_err(|error| lost(Reason::from(error)))?;
    ended
}

/// Says that what could not be written is lost.
fn lost(mut reason: Reason) -> Reason {
    reason.text = format!("it is unmounted, but its last changes are lost: {}", reason.text);
    reason.hint("'hardpack check POOL' tells whether the pool is whole")
}

/// Unmounts a directory whose server answers, and leaves to that what is not written soon.
fn umount_lazily(directory: &Path) -> Result<ExitCode, Reason> {
    let synced = in_another(&["--look", "--lazy"], directory, LAZY_ANSWER_TIME)?;
    unmount(directory, true)?;
    match synced {
        None | Some((0, _)) => Ok(ExitCode::SUCCESS),
        Some(_) => Err(lost(Reason::new(Code::Cannot, "they cannot be written"))),
    }
}

/// Unmounts what another user has mounted. The kernel hands on what is not written, but whether the
/// server can write it, only its user is told. Nor can the server be asked whether it answers.
fn umount_private(directory: &Path, args: &UmountArgs) -> Result<ExitCode, Reason> {
    let device = device_of(directory)?.ok_or_else(|| Reason::new(Code::Cannot, NO_POOL))?;
    if args.lazy {
        return unmount(directory, true).map(|()| ExitCode::SUCCESS);
    }
    match (stuck::is_stopped(&device), args.force) {
        (true, true) => abort(directory).map(|()| ExitCode::SUCCESS),
        (true, false) => Err(silent()),
        (false, true) => umount_by_force(directory),
        (false, false) => {
            let servers = stuck::open_servers(&device);
            unmount(directory, false)?;
            wait_for_end(&servers, Some(&device))
        }
    }
}

/// Waits for servers whose mount was removed: until then, they may have the pool open.
fn wait_for_end(servers: &[OwnedFd], device: Option<&str>) -> Result<ExitCode, Reason> {
    // Another directory shows the same mount, so its server goes on.
    if device.is_some_and(is_anywhere) {
        return Ok(ExitCode::SUCCESS);
    }
    let has_ended = |server: &OwnedFd| sys::is_readable(server.as_fd(), END_TIME).unwrap_or(true);
    match servers.iter().all(has_ended) {
        true => Ok(ExitCode::SUCCESS),
        false => Err(Reason::new(Code::Cannot, "its server has not ended yet")),
    }
}

/// Unmounts a directory whose server answers, as always, if that does not take too long.
fn umount_by_force(directory: &Path) -> Result<ExitCode, Reason> {
    let device = device_of(directory)?;
    match in_another(&[], directory, FORCE_TIME)? {
        Some((code, said)) => {
            // It says why, if it has failed.
            let _ = io::stderr().write_all(&said);
            Ok(ExitCode::from(code))
        }
        None if device_of(directory)? == device => abort(directory).map(|()| ExitCode::SUCCESS),
        // What is left of the mount on another directory stays.
        None if device.as_deref().is_some_and(is_anywhere) => Ok(ExitCode::SUCCESS),
        // It is taken off the list, but the other process waits for its server.
        None => device.map_or(Ok(()), |device| end(&device)).map(|()| ExitCode::SUCCESS),
    }
}

/// Lets another process unmount a directory, or look at it. Returns its exit code and what it says,
/// or `None` if it takes too long, as it may wait for a disk that hangs. Then it is killed, but may
/// wait on; it has nothing open that others wait for.
fn in_another(
    flags: &[&str],
    directory: &Path,
    time: Duration,
) -> Result<Option<(u8, Vec<u8>)>, Reason> {
    let mut command = Command::new(std::env::current_exe()?);
    command.arg("umount").args(flags).arg("--").arg(directory);
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped());
    let mut child = command.spawn()?;
    let ended = Pid::from_raw(child.id().cast_signed()).and_then(open_process);
    if ended.is_some_and(|ended| !sys::is_readable(ended.as_fd(), time).unwrap_or(true)) {
        child.kill()?;
        return Ok(None);
    }
    // What it says is shorter than a pipe.
    let done = child.wait_with_output()?;
    let code = done.status.code().and_then(|code| u8::try_from(code).ok());
    Ok(Some((code.unwrap_or(Code::Internal as u8), done.stderr)))
}

/// Refuses to do anything about a mount whose server does not answer.
fn silent() -> Reason {
    let text = "its server does not answer: it is stopped or was killed, or its disk hangs";
    Reason::new(Code::Cannot, text).hint(
        "let it go on ('pgrep -fa hardpack' finds it, 'kill -CONT' resumes it), or \
         'hardpack umount --force' takes the mount away: what was synced is in the pool",
    )
}

/// Whether the server of what is mounted on a directory was killed and cannot end.
fn is_stuck(directory: &Path) -> Result<bool, Reason> {
    let device = device_of(directory)?;
    Ok(device.is_some_and(|device| stuck::is_stuck(&device)))
}

/// Removes what a dead mount has left.
fn remove_dead(directory: &Path) -> Result<(), Reason> {
    match is_stuck(directory)? {
        true => abort(directory),
        false => unmount(directory, true),
    }
}

/// Unmounts a directory although its server does not answer: whoever waits for it gets an error.
fn abort(directory: &Path) -> Result<(), Reason> {
    let flags = UnmountFlags::FORCE | UnmountFlags::DETACH | UnmountFlags::NOFOLLOW;
    match rustix::mount::unmount(directory, flags) {
        Err(Errno::PERM) => {}
        done => return done.map_err(|error| io::Error::from(error).into()),
    }
    // The owner of a mount may end its connection.
    let device = device_of(directory)?;
    end(&device.ok_or_else(|| Reason::new(Code::Cannot, NO_POOL))?)?;
    unmount_by_helper(directory, true)
}

/// Ends a connection.
fn end(device: &str) -> Result<(), Reason> {
    let control = Path::new(FUSE_CONNECTIONS).join(device).join("abort");
    match fs::write(&control, "1") {
        // In a container, nobody may have mounted these files.
        Err(error) if error.kind() == io::ErrorKind::NotFound && stuck::end_servers(device) => {}
        done => done.map_err(|error| Reason::from(error).about(&control))?,
    }
    Ok(())
}

/// Returns a process, to wait for its end.
fn open_process(number: Pid) -> Option<OwnedFd> {
    rustix::process::pidfd_open(number, PidfdFlags::empty()).ok()
}

/// Returns the number of the process that serves a mount.
fn server_number(directory: &Path) -> Option<Pid> {
    let mut number = [0; 16];
    let len = rustix::fs::getxattr(directory, SERVER_XATTR, &mut number).ok()?;
    Pid::from_raw(std::str::from_utf8(number.get(..len)?).ok()?.parse().ok()?)
}

/// Unmounts a directory.
fn unmount(directory: &Path, lazily: bool) -> Result<(), Reason> {
    let flags = if lazily { UnmountFlags::DETACH } else { UnmountFlags::empty() };
    match rustix::mount::unmount(directory, flags | UnmountFlags::NOFOLLOW) {
        Ok(()) => Ok(()),
        Err(Errno::PERM) => unmount_by_helper(directory, lazily),
        Err(Errno::BUSY) => Err(in_use()),
        Err(error) => Err(io::Error::from(error).into()),
    }
}

fn in_use() -> Reason {
    Reason::new(Code::InUse, "programs use it")
        .hint("'fuser -m DIR' lists them; --lazy lets them finish")
}

fn unmount_by_helper(directory: &Path, lazily: bool) -> Result<(), Reason> {
    let mut helper = Command::new(HELPER);
    helper.arg("-u").args(lazily.then_some("-z")).arg("--").arg(directory);
    let done =
        helper.env("LC_ALL", "C").stdin(Stdio::null()).output().map_err(|error| {
            Reason::from(error).within(HELPER).hint("install the package fuse3")
        })?;
    match done.status.success() {
        true => Ok(()),
        false => {
            let said = String::from_utf8_lossy(&done.stderr);
            match said.contains("busy") {
                true => Err(in_use()),
                false => Err(Reason::new(Code::Cannot, text::escaped(said.trim().as_bytes()))),
            }
        }
    }
}
