//! Lets calls from modules that a program loads come here, too.
//!
//! With `RTLD_DEEPBIND`, as PHP loads its modules, a module is bound to the libraries that it is
//! linked to before anything preloaded. This flag is taken out. The dynamic linker looks for a
//! library as its caller says (`RUNPATH`), so the call is passed on with the return address that
//! it came with.
#![expect(unsafe_code, reason = "stands in front of a C function")]

use std::ffi::{c_int, c_void};
use std::sync::atomic::{AtomicPtr, Ordering};

use crate::serving;

/// The C library's function, and the flags to call it with, in the two registers of a result.
#[repr(C)]
pub struct Behind {
    function: *mut c_void,
    flags: usize,
}

/// `dlopen`
///
/// # Safety
///
/// The arguments are those of `dlopen`.
#[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
#[unsafe(naked)]
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dlopen() {
    #[cfg(target_arch = "x86_64")]
    std::arch::naked_asm!(
        "push rdi",
        "sub rsp, 16",
        "mov edi, esi",
        "call {}",
        "add rsp, 16",
        "pop rdi",
        "mov rsi, rdx",
        "jmp rax",
        sym behind
    );
    #[cfg(target_arch = "aarch64")]
    std::arch::naked_asm!(
        "stp x0, x30, [sp, #-16]!",
        "mov w0, w1",
        "bl {}",
        "mov x16, x0",
        "ldp x0, x30, [sp], #16",
        "br x16",
        sym behind
    );
}

extern "C" fn behind(flags: c_int) -> Behind {
    static NEXT: AtomicPtr<c_void> = AtomicPtr::new(std::ptr::null_mut());
    let mut function = NEXT.load(Ordering::Relaxed);
    if function.is_null() {
        // SAFETY: the name is a C string.
        function = unsafe { libc::dlsym(libc::RTLD_NEXT, c"dlopen".as_ptr()) };
        NEXT.store(function, Ordering::Relaxed);
    }
    let unwanted = if serving::flags().is_some() { libc::RTLD_DEEPBIND } else { 0 };
    Behind { function, flags: (flags & !unwanted) as usize }
}
