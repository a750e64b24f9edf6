//! Fixed orders: of two threads, one is stopped before each of its calls in turn, and the other
//! goes first.

use super::is_open;
use super::pools::{self, Start};
use super::worker;
use super::world::World;

/// An upper bound of the calls that a thread makes.
const STEP_COUNT_MAX: u64 = 400;

/// A thread opens, reads and closes a database; before its call number `at`, another thread of the
/// process starts to write, in a connection that it opens then or has `opened` before. Returns
/// whether there was such a call; the error says what is wrong.
fn a_thread_comes_between(
    mode: &str,
    path: &str,
    is_opened: bool,
    at: u64,
) -> Result<bool, String> {
    let made = pools::new_directory(mode, Start::Worked);
    let mut world = World::new(made.directory.path(), at);
    let open = format!("open x {path}\nread x\nend x");
    let reads = format!("pause\n{open}\nclose x");
    let [before, after] = if is_opened { [&*open, ""] } else { ["", &*open] };
    let writes = format!("{before}\npause\n{after}\nbegin x\nput x one\npause\ncommit x");
    let both = world.start("both", &mut worker::command(&format!("{reads}\n---\n{writes}")));
    world.run_to_pause(both);
    let [reader, writer] = world.paused_threads(both)[..] else {
        return Err(format!("not two threads\n{}", world.history()));
    };
    world.resume_thread(reader);
    let is_such_a_call = world.run_thread(reader, at) == at;
    world.resume_thread(writer);
    // Each thread may have to wait for the other.
    for thread in [writer, reader, writer] {
        world.run_thread(thread, STEP_COUNT_MAX);
    }
    let other = world.start(
        "other",
        &mut worker::command(&format!("open x {path}\nbegin x\nput x two\ncommit x")),
    );
    world.run_one(other, 3_600_000, &mut |_| false);
    let said: Vec<String> =
        [both, other].iter().flat_map(|w| world.said(*w)).map(String::from).collect();
    let has = |line: &str| said.iter().any(|said| said == line);
    if !world.said(both).contains(&"ok begin x") {
        // The reader, stopped while closing the database, kept the writer out.
        return Ok(is_such_a_call);
    }
    if !has("ok put x one") || !has("busy begin x") {
        return Err(format!("two processes write\n{}", world.history()));
    }
    world.resume(both);
    world.run_all(&super::world::Order::Random(0), &mut |_| {})?;
    if !world.said(both).contains(&"ok commit x") {
        return Err(format!("the commit failed\n{}", world.history()));
    }
    let tokens = pools::tokens(&world.dir().join(path))?;
    match tokens.contains("one") && !tokens.contains("two") {
        true => Ok(is_such_a_call),
        false => Err(format!("{tokens:?}\n{}", world.history())),
    }
}

#[test]
fn a_thread_that_opens_or_closes_takes_nothing_from_one_that_writes() {
    for mode in ["delete", "wal"] {
        for path in ["p.hpk/x.db", "p.hpk/y.db"] {
            for is_opened in [false, true] {
                let what = format!("{mode}, {path}, opened: {is_opened}");
                for at in 0..STEP_COUNT_MAX {
                    match a_thread_comes_between(mode, path, is_opened, at) {
                        Ok(true) => {}
                        Ok(false) => {
                            assert!(at > 5, "{what}: only {at} calls");
                            break;
                        }
                        Err(text) if is_open(5) => println!("{what}, before call {at}: {text}"),
                        Err(text) => panic!("{what}, before call {at}: {text}"),
                    }
                }
            }
        }
    }
}
