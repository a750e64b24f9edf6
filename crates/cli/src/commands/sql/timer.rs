//! The line that `.timer on` adds.

use std::time::Duration;

use crate::sys;

/// User and system time of this process so far.
pub fn cpu_times() -> [Duration; 2] {
    sys::cpu_times()
}

pub fn line(real: Duration, before: [Duration; 2]) -> String {
    let [user, system] = cpu_times();
    let [user, system] = [user.saturating_sub(before[0]), system.saturating_sub(before[1])];
    format!(
        "Run Time: real {:.3} user {:.6} sys {:.6}\n",
        real.as_secs_f64(),
        user.as_secs_f64(),
        system.as_secs_f64()
    )
}
