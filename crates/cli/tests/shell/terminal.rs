//! The shell of `hardpack sql` on a terminal: editing, history, Ctrl-C, and how it leaves the
//! terminal. Nothing here depends on how long anything takes: every step waits for what the
//! terminal shows.
#![expect(clippy::unwrap_used, reason = "a failed step must end a test")]

use std::fs::{self, File};
use std::io::{Read, Write};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::mpsc::{self, Receiver};
use std::time::{Duration, Instant};

use crate::common::*;
use rustix::fs::{Mode, OFlags};
use rustix::process::{Pid, Signal, kill_process};
use rustix::pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt};
use rustix::termios::{LocalModes, tcgetattr};
use tempfile::TempDir;

/// How long to wait for what must come.
const DEADLINE: Duration = Duration::from_secs(60);
const PAUSE: Duration = Duration::from_millis(20);

const PROMPT: &str = "hardpack> ";
const CONTINUED: &str = "     ...> ";
const CTRL_C: &str = "\x03";
const CTRL_D: &str = "\x04";
const LEFT: &str = "\x1b[D";
const UP: &str = "\x1b[A";

/// Rows without end.
const ENDLESS: &str =
    "WITH RECURSIVE c(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM c) SELECT i FROM c;";
/// No row, and no end.
const SILENT: &str = "WITH RECURSIVE c(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM c) \
                      SELECT count(*) FROM c;";

/// A program on a terminal of its own.
struct Terminal {
    child: Child,
    keys: File,
    parts: Receiver<Vec<u8>>,
    /// What it has shown, and no step has waited for yet.
    shown: String,
}

impl Terminal {
    /// Starts a program that leads a session on the terminal, so that Ctrl-C reaches it.
    fn start(home: &Path, program: &[&str], variables: &[(&str, &str)]) -> Terminal {
        let keys = openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY).unwrap();
        grantpt(&keys).unwrap();
        unlockpt(&keys).unwrap();
        let name = ptsname(&keys, Vec::new()).unwrap();
        let other = rustix::fs::open(&name, OFlags::RDWR | OFlags::NOCTTY, Mode::empty()).unwrap();
        let other = File::from(other);
        let mut command = Command::new("setsid");
        command.arg("--ctty").args(program).current_dir(home);
        command.stdin(other.try_clone().unwrap()).stdout(other.try_clone().unwrap()).stderr(other);
        // No library: the shell is the one of the command, whatever is installed here.
        command.env("HARDPACK_LIBRARY", home.join("none")).env("TERM", "xterm");
        command.env("HOME", home).env_remove("XDG_STATE_HOME").env_remove("HARDPACK_HISTORY");
        command.envs(variables.iter().copied());
        let child = command.spawn().unwrap();
        // Or the terminal would stay open at the other end.
        drop(command);
        let keys = File::from(keys);
        let mut out = keys.try_clone().unwrap();
        let (sender, parts) = mpsc::channel();
        std::thread::spawn(move || {
            let mut part = [0; 4096];
            // The end is an error (EIO).
            while let Ok(n @ 1..) = out.read(&mut part) {
                if sender.send(part[..n].to_vec()).is_err() {
                    return;
                }
            }
        });
        Terminal { child, keys, parts, shown: String::new() }
    }

    fn type_keys(&mut self, keys: &str) {
        self.keys.write_all(keys.as_bytes()).unwrap();
    }

    /// Waits until the terminal shows a text, and returns what it showed before.
    fn until(&mut self, text: &str) -> String {
        let end = Instant::now() + DEADLINE;
        loop {
            if let Some(at) = self.shown.find(text) {
                let rest = self.shown.split_off(at + text.len());
                let mut before = std::mem::replace(&mut self.shown, rest);
                before.truncate(at);
                return before;
            }
            let left = end.saturating_duration_since(Instant::now());
            match self.parts.recv_timeout(left) {
                Ok(part) => self.shown.push_str(&String::from_utf8_lossy(&part)),
                Err(_) => panic!("'{text}' was never shown; the end is: {:?}", self.tail()),
            }
        }
    }

    fn tail(&self) -> &str {
        let start = self.shown.len().saturating_sub(2000);
        self.shown.get(start..).unwrap_or(&self.shown)
    }

    /// Types a line, which must show this one line, and waits for the next prompt.
    fn answers(&mut self, keys: &str, shown: &str) {
        self.type_keys(&format!("{keys}\r"));
        self.until_line(shown);
        self.until(PROMPT);
    }

    /// Waits for this line. The end of the one before it is "\r\n", of which this leaves the half.
    fn until_line(&mut self, line: &str) {
        self.until(&format!("\n{line}\r"));
    }

    /// Interrupts the second line of a file, whose first one shows that it runs. Returns what is
    /// shown.
    fn interrupts_second_line(&mut self, file: &str) -> String {
        let end = Instant::now() + DEADLINE;
        loop {
            self.type_keys(&format!(".read {file}\r"));
            self.until_line("be''gun");
            self.type_keys(CTRL_C);
            let message = self.until(PROMPT);
            assert!(message.contains(&format!("cannot run '.read {file}': interrupted\r\n")));
            // Otherwise the second line had not begun.
            if message.contains("interrupted (line 2)\r\n") {
                return message;
            }
            assert!(Instant::now() < end, "the line does not begin: {message}");
        }
    }

    /// Waits until a line runs: the editor has put the settings of the terminal back.
    fn until_running(&self) {
        let end = Instant::now() + DEADLINE;
        while !self.is_cooked() {
            assert!(Instant::now() < end, "the editor is still there");
            std::thread::sleep(PAUSE);
        }
    }

    fn is_cooked(&self) -> bool {
        tcgetattr(&self.keys).unwrap().local_modes.contains(LocalModes::ICANON)
    }

    /// Waits until the program has ended.
    fn end(mut self) -> ExitStatus {
        let end = Instant::now() + DEADLINE;
        loop {
            if let Some(status) = self.child.try_wait().unwrap() {
                return status;
            }
            assert!(Instant::now() < end, "it does not end; the end is: {:?}", self.tail());
            std::thread::sleep(PAUSE);
        }
    }
}

impl Drop for Terminal {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn binary() -> String {
    assert_cmd::cargo::cargo_bin!("hardpack").to_str().unwrap().into()
}

/// Makes a directory with the pool `a.db.hpk`, whose table `t` has ten rows.
fn home() -> TempDir {
    packed_as("a.db", 10).0
}

fn shell(home: &TempDir) -> Terminal {
    shell_with(home, &[])
}

/// Starts the shell and waits for its prompt.
fn shell_with(home: &TempDir, variables: &[(&str, &str)]) -> Terminal {
    let program = [&binary()[..], "sql", "a.db.hpk"];
    let mut terminal = Terminal::start(home.path(), &program, variables);
    terminal.until(PROMPT);
    terminal
}

fn make_fifo(path: &Path) {
    assert!(Command::new("mkfifo").arg(path).status().unwrap().success());
}

fn default_history(home: &TempDir) -> PathBuf {
    home.path().join(".local/state/hardpack/sql_history")
}

#[test]
fn lines_are_edited() {
    let home = home();
    let mut shell = shell(&home);
    shell.answers(&format!("SELECT 12{LEFT}3\x05 + 1;"), "133");
    shell.answers("SELECT 20x\x7f + 1;", "21");
    shell.answers(&format!("1 + 1;\x01SELEXT {LEFT}{LEFT}{LEFT}\x1b[3~C"), "2");
    shell.answers("SELECT 'Größe', 6 * 7;", "Größe|42");
    shell.type_keys("SELECT 1\r");
    shell.until(CONTINUED);
    shell.answers("+ 4;", "5");
    shell.type_keys(".quit\r");
    assert!(shell.end().success());
}

#[test]
fn lines_that_arrive_together_all_run() {
    let home = home();
    let mut shell = shell(&home);
    shell.type_keys("SELECT 10 + 1;\rSELECT 10 + 2;\rSELECT 10 +\r3;\r");
    for shown in ["11", "12", "13"] {
        shell.until_line(shown);
    }
    shell.until(PROMPT);
    // A paste is marked, and one thing to edit until Enter. Its comments end with their lines.
    shell.type_keys("\x1b[200~SELECT 20 + 1; -- one\r\nSELECT 20 +\n2;\n.print 20 3\x1b[201~\r");
    for shown in ["21", "22", "20 3"] {
        shell.until_line(shown);
    }
    shell.until(PROMPT);
    shell.type_keys(CTRL_D);
    assert!(shell.end().success());
}

#[test]
fn ctrl_d_ends_the_shell_and_the_line() {
    let home = home();
    let mut shell = shell(&home);
    shell.type_keys(CTRL_D);
    shell.until("\r\n");
    assert!(shell.end().success());
}

#[test]
fn ctrl_c_at_the_prompt_drops_what_was_typed() {
    let home = home();
    let mut shell = shell(&home);
    shell.type_keys(&format!("DELETE FROM t;{CTRL_C}"));
    shell.until("\r\n");
    shell.until(PROMPT);
    shell.type_keys("DELETE FROM t\r");
    shell.until(CONTINUED);
    shell.type_keys(&format!("WHERE a{CTRL_C}"));
    shell.until("\r\n");
    shell.until(PROMPT);
    shell.answers("SELECT 'there are', count(*) FROM t;", "there are|10");
    // Nothing of it is left for the end either.
    shell.type_keys(CTRL_D);
    assert!(shell.end().success());
    assert_eq!(succeeds(home.path(), &["sql", "a.db.hpk", "SELECT count(*) FROM t"]), "10\n");
}

#[test]
fn ctrl_c_interrupts_a_statement_and_the_shell_goes_on() {
    let home = home();
    let mut shell = shell(&home);
    for start in ["", "EXPLAIN QUERY PLAN SELECT 1; "] {
        shell.type_keys(&format!("{start}{ENDLESS} SELECT 'not ' || 'this';\r"));
        shell.until("\r\n1000\r\n");
        shell.type_keys(CTRL_C);
        shell.until("\r\nhardpack: cannot run '");
        let message = shell.until(PROMPT);
        assert!(message.contains("': interrupted\r\n"), "{message}");
        assert!(!message.contains("not this"), "{message}");
    }
    shell.answers("SELECT 6 * 7;", "42");
    // An interrupt is no failure of the shell.
    shell.type_keys(".quit\r");
    assert!(shell.end().success());
}

#[test]
fn ctrl_c_leaves_a_transaction_as_sqlite_does() {
    let home = home();
    let mut shell = shell(&home);
    let script = format!(".print be''gun\n{SILENT}\n");
    fs::write(home.path().join("read.sql"), script).unwrap();
    let script = format!(".print be''gun\nINSERT INTO t(b) {}\n", SILENT.replace("count(*)", "i"));
    fs::write(home.path().join("write.sql"), script).unwrap();
    for (file, writes) in [("read.sql", false), ("write.sql", true)] {
        let end = Instant::now() + DEADLINE;
        loop {
            shell.type_keys("BEGIN; INSERT INTO t(b) VALUES('new');\r");
            shell.until(PROMPT);
            let message = shell.interrupts_second_line(file);
            let is_told =
                message.contains("hint: SQLite has rolled the whole transaction back\r\n");
            assert!(writes || !is_told, "{message}");
            shell.answers("SELECT count(*) FROM t;", if is_told { "10" } else { "11" });
            shell.type_keys("ROLLBACK;\r");
            shell.until(PROMPT);
            if is_told == writes {
                break;
            }
            // Interrupted before its first row, a statement leaves the transaction as it was.
            assert!(Instant::now() < end, "no row is written: {message}");
        }
    }
    // There was no transaction left for the second ROLLBACK.
    shell.type_keys(CTRL_D);
    assert_eq!(shell.end().code(), Some(3));
}

#[test]
fn ctrl_c_stops_dot_commands() {
    let home = home();
    // Ctrl-C meets the statement of a record, as they take long.
    let records: String = (101..10_000).map(|number| format!("{number},x\n")).collect();
    fs::write(home.path().join("records"), records).unwrap();
    let script = ".print be''gun\n.import --csv records t\n";
    fs::write(home.path().join("import.sql"), script).unwrap();
    let trigger = "CREATE TABLE u(n); CREATE TRIGGER slow AFTER INSERT ON t WHEN new.b = 'x' BEGIN \
                   INSERT INTO u SELECT count(*) FROM t, t, t, t, t, t; END";
    succeeds(home.path(), &["sql", "a.db.hpk", trigger]);
    let mut shell = shell(&home);
    let script = format!(".print be''gun\n{SILENT}\n.print not this\n");
    fs::write(home.path().join("long.sql"), script).unwrap();
    let message = shell.interrupts_second_line("long.sql");
    assert!(message.contains("cannot run '.read long.sql': interrupted\r\n"), "{message}");
    assert!(!message.contains("not this"), "{message}");

    let rows = ENDLESS.trim_end_matches(';');
    shell.type_keys(&format!("CREATE TABLE many AS {rows} LIMIT 1000000;\r"));
    shell.until(PROMPT);
    shell.type_keys(".dump many\r");
    shell.until("VALUES(100);\r\n");
    shell.type_keys(CTRL_C);
    let message = shell.until(PROMPT);
    assert!(message.contains("\r\nROLLBACK; -- due to errors\r\n"), "{}", shell.tail());
    assert!(message.contains("cannot run '.dump many': interrupted\r\n"), "{}", shell.tail());
    shell.answers("BEGIN; SELECT 'free'; COMMIT;", "free");

    // An import ends between two records, and keeps what the transaction did before it.
    shell.type_keys("BEGIN; INSERT INTO t(b) VALUES('before');\r");
    shell.until(PROMPT);
    let message = shell.interrupts_second_line("import.sql");
    assert!(message.contains("\r\nhint: nothing was imported"), "{message}");
    shell.answers("COMMIT; SELECT count(*), max(b) FROM t;", "11|this is row 9");
    shell.type_keys(CTRL_D);
    assert!(shell.end().success());
}

#[test]
fn ctrl_c_ends_a_wait_for_a_lock() {
    let home = home();
    let mut shell = shell(&home);
    let mut other = Session::open(&home.path().join("a.db.hpk"));
    other.run("BEGIN IMMEDIATE");
    // Several, as each of them gives up after a while.
    let insert = "INSERT INTO t(b) VALUES('late');\n";
    let script = format!(".print be''gun\n{}", insert.repeat(20));
    fs::write(home.path().join("waits.sql"), script).unwrap();
    let message = shell.interrupts_second_line("waits.sql");
    assert!(!message.contains("locked"), "{message}");
    other.run("COMMIT");
    shell.answers("SELECT count(*) FROM t;", "10");
    other.close();
}

#[test]
fn a_second_ctrl_c_ends_a_line_that_does_not_stop() {
    let home = home();
    let mut shell = shell(&home);
    // Nothing stops a wait for somebody who writes into a pipe.
    make_fifo(&home.path().join("nobody"));
    shell.type_keys(".read nobody\r");
    shell.until_running();
    let end = Instant::now() + DEADLINE;
    while shell.child.try_wait().unwrap().is_none() {
        assert!(Instant::now() < end, "Ctrl-C does not end it");
        shell.type_keys(CTRL_C);
        std::thread::sleep(PAUSE);
    }
    assert_eq!(shell.end().signal(), Some(Signal::INT.as_raw()));
}

#[test]
fn signals_leave_the_terminal_as_it_was() {
    let home = home();
    for (signal, code) in [(Signal::TERM, 143), (Signal::HUP, 129)] {
        // The kernel resets a terminal whose session ends, so another program leads this one.
        let script = "stty -g; (echo \"pid=$(exec sh -c 'echo $PPID').\"; exec \"$0\" sql a.db.hpk); \
                      echo \"left $?.\"; stty -g";
        // Whoever runs the tests may ignore signals, as under nohup.
        let program = ["env", "--default-signal=HUP,TERM", "sh", "-c", script, &binary()];
        let mut shell = Terminal::start(home.path(), &program, &[]);
        let before = shell.until("\r\n");
        shell.until("pid=");
        let pid: i32 = shell.until(".").parse().unwrap();
        shell.until(PROMPT);
        assert!(!shell.is_cooked(), "no line editor");
        kill_process(Pid::from_raw(pid).unwrap(), signal).unwrap();
        let last = shell.until(&format!("left {code}.\r\n"));
        assert!(last.contains("\x1b[?2004l\r\n"), "{last:?}");
        assert_eq!(shell.until("\r\n"), before);
        assert!(shell.end().success());
    }
}

#[test]
fn the_history_is_recalled_in_another_shell() {
    let home = home();
    let mut shell = shell(&home);
    shell.answers("SELECT 'fir' || 'st';", "first");
    shell.answers(" SELECT 'sec' || 'ret';", "secret");
    shell.type_keys(" SELECT 'sec' ||\r");
    shell.until(CONTINUED);
    shell.answers("'ret';", "secret");
    shell.type_keys("SELECT 'se' ||\r");
    shell.until(CONTINUED);
    shell.answers("  'cond';", "second");
    shell.type_keys(".quit\r");
    assert!(shell.end().success());

    let file = default_history(&home);
    let kept = fs::read_to_string(&file).unwrap();
    assert_eq!(kept, "#V2\nSELECT 'fir' || 'st';\nSELECT 'se' ||\n  'cond';\n.quit\n");
    let mode = |path: &Path| fs::metadata(path).unwrap().permissions().mode() & 0o777;
    assert_eq!(mode(&file), 0o600);
    assert_eq!(mode(file.parent().unwrap()), 0o700);

    let mut shell = shell_with(&home, &[]);
    shell.answers(&UP.repeat(4), "first");
    shell.answers("\x12fir", "first");
    shell.type_keys(CTRL_D);
    assert!(shell.end().success());
}

#[test]
fn shells_at_once_keep_each_others_history() {
    let home = home();
    let path = home.path().join("own");
    let variables = [("HARDPACK_HISTORY", path.to_str().unwrap())];
    let (mut one, mut two) = (shell_with(&home, &variables), shell_with(&home, &variables));
    one.answers("SELECT 10 + 1;", "11");
    two.answers("SELECT 10 + 2;", "12");
    one.answers("SELECT 10 + 3;", "13");
    drop((one, two));
    let kept = fs::read_to_string(&path).unwrap();
    assert_eq!(kept, "#V2\nSELECT 10 + 1;\nSELECT 10 + 2;\nSELECT 10 + 3;\n");
    assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
}

#[test]
fn the_history_has_a_bounded_length() {
    let home = home();
    let path = home.path().join("own");
    let lines: String = (0..3000).map(|number| format!("SELECT {number};\n")).collect();
    fs::write(&path, lines).unwrap();
    let mut shell = shell_with(&home, &[("HARDPACK_HISTORY", path.to_str().unwrap())]);
    shell.answers("SELECT 10 + 1;", "11");
    drop(shell);
    let kept = fs::read_to_string(&path).unwrap();
    let kept: Vec<&str> = kept.lines().collect();
    assert_eq!((kept.len(), kept[1], kept[2000]), (2001, "SELECT 1001;", "SELECT 10 + 1;"));
}

#[test]
fn a_history_that_cannot_be_kept_is_no_failure() {
    let home = home();
    let inside_file = home.path().join("a.db.hpk/history");
    let fifo = home.path().join("fifo");
    make_fifo(&fifo);
    let latin = home.path().join("latin");
    fs::write(&latin, b"SELECT 'Gr\xf6\xdfe';\n").unwrap();
    let paths = ["", "/dev/null", "/proc/none", home.path().to_str().unwrap()];
    for path in paths.into_iter().chain([&inside_file, &fifo, &latin].map(|p| p.to_str().unwrap()))
    {
        let mut shell = shell_with(&home, &[("HARDPACK_HISTORY", path)]);
        shell.answers("SELECT 10 + 1;", "11");
        // Without a file there still is what this shell ran.
        shell.answers(UP, "11");
        shell.type_keys(CTRL_D);
        assert!(shell.end().success(), "{path}");
    }
    assert!(!default_history(&home).exists());
}

#[test]
fn a_plain_terminal_gets_plain_lines() {
    let home = home();
    let mut shell = shell_with(&home, &[("TERM", "dumb")]);
    assert!(shell.is_cooked());
    shell.type_keys("SELECT 10 + 1;\n");
    assert!(!shell.until("\r\n11\r\n").contains('\x1b'));
    shell.until(PROMPT);
    shell.type_keys(CTRL_C);
    assert_eq!(shell.end().signal(), Some(Signal::INT.as_raw()));
    assert!(!default_history(&home).exists());
}

#[test]
fn piped_input_is_neither_edited_nor_kept() {
    let home = home();
    let piped = |input: &str| {
        let mut command = Command::new(binary());
        command.args(["sql", "a.db.hpk"]).current_dir(home.path()).env("HOME", home.path());
        command.env_remove("XDG_STATE_HOME").env_remove("HARDPACK_HISTORY");
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
        child.stdin.take().unwrap().write_all(input.as_bytes()).unwrap();
        child
    };
    let done = piped("SELECT 10 + 1;\nSELECT\n'\x01';\n").wait_with_output().unwrap();
    assert!(done.status.success());
    assert_eq!(done.stdout, b"11\n\x01\n");
    assert!(!home.path().join(".local").exists());

    let mut child = piped(ENDLESS);
    let mut out = child.stdout.take().unwrap();
    out.read_exact(&mut [0; 100]).unwrap();
    kill_process(Pid::from_child(&child), Signal::INT).unwrap();
    std::thread::spawn(move || std::io::copy(&mut out, &mut std::io::sink()));
    assert_eq!(child.wait().unwrap().signal(), Some(Signal::INT.as_raw()));
}
