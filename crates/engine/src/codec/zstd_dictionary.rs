//! Lending a prepared dictionary to a zstd context for one record.
//!
//! zstd's one-shot function for dictionaries knows no magicless frames, so the dictionary has to be
//! set on the context, which keeps a pointer to it. `zstd-safe` expresses that with a lifetime, which
//! a context that outlives its dictionaries cannot have. Here the context gets that lifetime for the
//! length of one call, and loses it again only once it has let go of the dictionary.
//!
//! A context that does not let go is dropped, and a new one made when the next is needed.
#![allow(unsafe_code)]

use zstd_safe::{CCtx, CDict, ResetDirective, SafeResult};

/// Compresses `src` into the front of `dst` with `dictionary` and its level; gives back the context,
/// at the start of a session and without a dictionary, or nothing if it had to be dropped.
pub(super) fn compress<'d>(
    context: CCtx<'static>,
    dictionary: &'d CDict<'static>,
    src: &[u8],
    dst: &mut [u8],
) -> (Option<CCtx<'static>>, SafeResult) {
    let mut context: CCtx<'d> = context;
    let result = context.ref_cdict(dictionary).and_then(|_| context.compress2(dst, src));
    // Where it failed it stays in the middle of the frame, and would not let go.
    let released =
        context.reset(ResetDirective::SessionOnly).and_then(|_| context.disable_dictionary());
    let context = released.is_ok().then(|| {
        // SAFETY: the types differ in a lifetime only, which says how long the context may use what
        // was lent to it. That was `dictionary` alone, and zstd has just confirmed that it is gone.
        unsafe { std::mem::transmute::<CCtx<'d>, CCtx<'static>>(context) }
    });
    (context, result)
}
