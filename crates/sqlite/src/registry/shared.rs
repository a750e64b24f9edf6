//! The caches that this process shares with others.

use std::sync::Arc;

use hardpack_engine::{SharedCache, SharedCacheSetting};

use crate::api;
use crate::ffi::SQLITE_NOTICE;
use crate::system;

/// Names the shared cache for all pools of a process, see [`SharedCacheSetting`].
const VARIABLE: &str = "HARDPACK_SHARED_CACHE";

/// The caches that were asked for, each once. Those that cannot be used are not tried again.
#[derive(Debug, Default)]
pub(super) struct SharedCaches(Vec<(SharedCacheSetting, Option<Arc<SharedCache>>)>);

impl SharedCaches {
    /// Returns the cache that the environment asks for. A program that has more rights than whoever
    /// started it does not listen to that.
    pub fn of_environment(&mut self) -> Option<Arc<SharedCache>> {
        if system::is_privileged() {
            return None;
        }
        let text = std::env::var(VARIABLE).ok()?;
        match text.parse() {
            Ok(setting) => self.open(&setting),
            Err(error) => {
                api::log(SQLITE_NOTICE, &format!("hardpack: {VARIABLE}: {error}"));
                None
            }
        }
    }

    /// Returns a cache. That it cannot be used is no error: it is written to SQLite's log.
    pub fn open(&mut self, setting: &SharedCacheSetting) -> Option<Arc<SharedCache>> {
        if let Some((_, shared)) = self.0.iter().find(|(known, _)| known == setting) {
            return shared.clone();
        }
        let shared = setting.open().unwrap_or_else(|error| {
            api::log(SQLITE_NOTICE, &format!("hardpack: no shared cache: {error}"));
            None
        });
        self.0.push((setting.clone(), shared.clone()));
        shared
    }
}
