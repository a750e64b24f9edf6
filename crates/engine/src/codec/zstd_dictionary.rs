//! Lends a prepared dictionary to a zstd context for one record.
//!
//! zstd's one-shot function for dictionaries does not support magicless frames, so the dictionary
//! must be set on the context, which keeps a pointer to it. `zstd-safe` expresses that with a
//! lifetime, which a context that outlives its dictionaries cannot have. Here the context gets that
//! lifetime for the duration of one call, and loses it again only once it has released the
//! dictionary.
//!
//! A context that does not release it is dropped, and a new one is created when next needed.
#![expect(unsafe_code, reason = "ends the loan of a dictionary, which zstd-safe cannot express")]

use zstd_safe::{CCtx, CDict, ResetDirective, SafeResult};

/// Compresses `src` into the front of `dst` with `dictionary` at its level. Returns the context,
/// reset and without a dictionary, or `None` if it had to be dropped.
pub(super) fn compress<'d>(
    context: CCtx<'static>,
    dictionary: &'d CDict<'static>,
    src: &[u8],
    dst: &mut [u8],
) -> (Option<CCtx<'static>>, SafeResult) {
    let mut context: CCtx<'d> = context;
    let result = context.ref_cdict(dictionary).and_then(|_| context.compress2(dst, src));
    // After a failure the context is in the middle of the frame and would not release the
    // dictionary.
    let released =
        context.reset(ResetDirective::SessionOnly).and_then(|_| context.disable_dictionary());
    let context = released.is_ok().then(|| {
        // SAFETY: the types differ only in a lifetime, which limits how long the context may use
        // what it borrowed. That was only `dictionary`, and zstd has just confirmed that it is
        // released.
        unsafe { std::mem::transmute::<CCtx<'d>, CCtx<'static>>(context) }
    });
    (context, result)
}
