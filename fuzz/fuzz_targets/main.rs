//! One binary for all targets, which is linked only once: `HARDPACK_FUZZ_TARGET` names the target
//! to run.
#![no_main]

use std::sync::OnceLock;

use hardpack_fuzz::engine::Target;

static TARGET: OnceLock<Target> = OnceLock::new();

libfuzzer_sys::fuzz_target!(
    init: {
        let wanted = std::env::var("HARDPACK_FUZZ_TARGET").unwrap_or_default();
        let mut all = hardpack_fuzz::engine::TARGETS.to_vec();
        #[cfg(feature = "sqlite")]
        all.extend(hardpack_fuzz::sqlite::TARGETS);
        let Some(target) = all.iter().find(|(name, _)| *name == wanted) else {
            let names: Vec<&str> = all.iter().map(|(name, _)| *name).collect();
            eprintln!("HARDPACK_FUZZ_TARGET must be one of: {}", names.join(", "));
            std::process::exit(2);
        };
        let _ = TARGET.set(*target);
    },
    |data: &[u8]| {
        if let Some((_, run)) = TARGET.get() {
            run(data);
        }
    }
);
