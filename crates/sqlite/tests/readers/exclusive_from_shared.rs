//! SQLite rolls a journal back that it finds under its shared lock: it takes the exclusive lock
//! without the reserved one. Others may have committed since the shared lock, before there was a
//! journal. What SQLite then learns about the file must be of the newest state: a length of an
//! older one would make it write a page of zeros at the end.
#![expect(unsafe_code, reason = "calls the methods of an open file as SQLite does")]

use std::path::Path;

use crate::common::{Role, run, value};
use rusqlite::{Connection, ffi};

#[test]
fn child_role() {
    crate::common::play_any();
}

/// The main database of a connection.
struct Opened<'d>(*mut ffi::sqlite3_file, std::marker::PhantomData<&'d Connection>);

impl Opened<'_> {
    fn of(db: &Connection) -> Opened<'_> {
        let mut file: *mut ffi::sqlite3_file = std::ptr::null_mut();
        // SAFETY: the connection is open, and the operation stores a pointer to its file.
        let code = unsafe {
            let (main, place) = (c"main".as_ptr(), (&raw mut file).cast());
            ffi::sqlite3_file_control(db.handle(), main, ffi::SQLITE_FCNTL_FILE_POINTER, place)
        };
        assert_eq!(code, ffi::SQLITE_OK);
        Opened(file, std::marker::PhantomData)
    }

    fn methods(&self) -> &ffi::sqlite3_io_methods {
        // SAFETY: the file is open as long as its connection.
        unsafe { &*(*self.0).pMethods }
    }

    fn lock(&self, level: i32) {
        // SAFETY: as above; nobody else uses the connection.
        assert_eq!(unsafe { self.methods().xLock.unwrap()(self.0, level) }, ffi::SQLITE_OK);
    }

    fn unlock(&self) {
        let unlock = self.methods().xUnlock.unwrap();
        // SAFETY: as above.
        assert_eq!(unsafe { unlock(self.0, ffi::SQLITE_LOCK_NONE) }, ffi::SQLITE_OK);
    }

    fn len(&self) -> i64 {
        let mut len = -1;
        // SAFETY: as above.
        let code = unsafe { self.methods().xFileSize.unwrap()(self.0, &mut len) };
        assert_eq!(code, ffi::SQLITE_OK);
        len
    }
}

fn len_of(path: &Path) -> i64 {
    let db = crate::common::open(path);
    value::<i64>(&db, "pragma page_count") * value::<i64>(&db, "pragma page_size")
}

#[test]
fn the_newest_state_is_under_the_lock() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("p.hpk");
    let db = crate::common::try_open(&path, "&hardpack_concurrency=snapshot").unwrap();
    run(&db, "create table t(a)");
    for _ in 0..3 {
        run(&db, "select * from t");
        let file = Opened::of(&db);
        file.lock(ffi::SQLITE_LOCK_SHARED);
        let before = file.len();
        Role::start("try", &[&path.to_string_lossy(), "insert into t values(zeroblob(20000))"])
            .finish();
        assert_eq!(file.len(), before, "the state that it reads");
        file.lock(ffi::SQLITE_LOCK_EXCLUSIVE);
        let found = file.len();
        file.unlock();
        assert_eq!(found, len_of(&path), "before the commit: {before}");
    }
}
