//! Finds the function that a call would have reached without this object.
//!
//! The dynamic linker binds a reference to the first definition in the global scope (the program,
//! preloaded objects, and the libraries that the program is linked to), or else in the scope of the
//! object that `dlopen` loaded, which is what Python does with its module. The same is done here,
//! with this object left out. A process may have several SQLites, and a handle of one must never
//! reach another.
//!
//! Invariants: an object with a function returned here stays loaded, so what is remembered stays
//! true.
#![expect(unsafe_code, reason = "asks the dynamic linker")]

use std::ffi::{CStr, c_char, c_int, c_void};
use std::ptr::{null, null_mut};
use std::sync::atomic::{AtomicPtr, Ordering};

/// A loaded object.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Object {
    /// Where it is loaded.
    pub base: *const c_void,
    /// The path that it was loaded by.
    path: *const c_char,
}

impl Object {
    /// Returns the object that has this address.
    pub fn of(address: *const c_void) -> Option<Object> {
        // SAFETY: zero is a valid value of every field; the call fills them in.
        let mut info: libc::Dl_info = unsafe { std::mem::zeroed() };
        // SAFETY: any address may be asked for.
        let is_known = unsafe { libc::dladdr(address, &mut info) } != 0;
        (is_known && !info.dli_fname.is_null())
            .then_some(Object { base: info.dli_fbase, path: info.dli_fname })
    }

    /// The path of the object. Valid while it is loaded.
    pub fn path(&self) -> &CStr {
        // SAFETY: the dynamic linker keeps the path, a C string, while the object is loaded.
        unsafe { CStr::from_ptr(self.path) }
    }

    /// Finds a function in this object and the libraries that it is linked to. Both stay loaded
    /// from here on if there is one.
    pub fn find(&self, name: &CStr) -> *mut c_void {
        let open = |flags| {
            // SAFETY: the object is loaded already, so no code of it runs.
            unsafe { libc::dlopen(self.path, libc::RTLD_LAZY | libc::RTLD_NOLOAD | flags) }
        };
        let handle = open(0);
        if handle.is_null() {
            return null_mut();
        }
        // SAFETY: the handle is valid and the name is a C string.
        let found = unsafe { libc::dlsym(handle, name.as_ptr()) };
        if !found.is_null() {
            open(libc::RTLD_NODELETE);
            if let Some(owner) = Object::of(found).filter(|owner| owner != self) {
                owner.pin();
            }
        }
        found
    }

    /// Keeps the object loaded.
    fn pin(&self) {
        let flags = libc::RTLD_LAZY | libc::RTLD_NOLOAD | libc::RTLD_NODELETE;
        // SAFETY: as in `find`.
        unsafe { libc::dlopen(self.path, flags) };
    }
}

/// Returns this object.
pub fn this() -> Option<Object> {
    Object::of(this as *const c_void)
}

/// The number of places that are remembered.
const PLACES: usize = 64;

/// A place in the code that called a function, and the function.
struct Place {
    caller: AtomicPtr<c_void>,
    name: AtomicPtr<c_char>,
    function: AtomicPtr<c_void>,
}

/// The first places that called. They are only added, each by the thread that first writes its
/// caller, and are read once their function is there.
static KNOWN: [Place; PLACES] = [const {
    Place {
        caller: AtomicPtr::new(null_mut()),
        name: AtomicPtr::new(null_mut()),
        function: AtomicPtr::new(null_mut()),
    }
}; PLACES];

/// Returns the function `name` that the code at `caller` would have reached.
pub fn of(caller: *const c_void, name: &'static CStr) -> Option<*mut c_void> {
    for place in &KNOWN {
        let known = place.caller.load(Ordering::Relaxed);
        if known.is_null() {
            break;
        }
        let function = place.function.load(Ordering::Acquire);
        let is_same = known.cast_const() == caller
            && place.name.load(Ordering::Relaxed).cast_const() == name.as_ptr();
        if is_same && !function.is_null() {
            return Some(function);
        }
    }
    let found = find(caller, name);
    if found.is_null() {
        return None;
    }
    let is_mine = |place: &&Place| {
        let free = null_mut();
        let (caller, relaxed) = (caller.cast_mut(), Ordering::Relaxed);
        place.caller.compare_exchange(free, caller, relaxed, relaxed).is_ok()
    };
    if let Some(place) = KNOWN.iter().find(is_mine) {
        place.name.store(name.as_ptr().cast_mut(), Ordering::Relaxed);
        place.function.store(found, Ordering::Release);
    }
    Some(found)
}

fn find(caller: *const c_void, name: &CStr) -> *mut c_void {
    // SAFETY: the name is a C string.
    let global = unsafe { libc::dlsym(libc::RTLD_NEXT, name.as_ptr()) };
    if !global.is_null() {
        return global;
    }
    let object = Object::of(caller);
    match object.map_or(null_mut(), |object| object.find(name)) {
        found if found.is_null() => only_one(name),
        found => found,
    }
}

/// The definitions of a function, apart from the one here.
struct Search<'n> {
    name: &'n CStr,
    own: Option<Object>,
    found: *mut c_void,
    is_single: bool,
}

/// Returns the only definition of a function in the process; NULL if there are several. A caller
/// that was never bound to one, such as generated code, cannot mean another.
fn only_one(name: &CStr) -> *mut c_void {
    let mut search = Search { name, own: this(), found: null_mut(), is_single: true };
    let context: *mut c_void = (&raw mut search).cast();
    // SAFETY: the callback takes this context, which outlives the call.
    unsafe { libc::dl_iterate_phdr(Some(look), context) };
    if search.is_single { search.found } else { null_mut() }
}

unsafe extern "C" fn look(info: *mut libc::dl_phdr_info, _: usize, context: *mut c_void) -> c_int {
    // SAFETY: see `only_one`; the dynamic linker passes a valid description.
    let (search, path) = unsafe { (&mut *context.cast::<Search<'_>>(), (*info).dlpi_name) };
    // SAFETY: as above.
    if path.is_null() || unsafe { *path } == 0 {
        return 0;
    }
    let found = Object { base: null(), path }.find(search.name);
    let is_other = Object::of(found).is_some_and(|owner| Some(owner) != search.own);
    if is_other && found != search.found {
        search.is_single = search.found.is_null();
        search.found = found;
    }
    0
}
