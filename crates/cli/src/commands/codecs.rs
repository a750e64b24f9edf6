//! `hardpack codecs`: lists the compression algorithms and their levels.

use std::process::ExitCode;

use hardpack_engine::codec::{Family, families};
use serde_json::{Value, json};

use crate::args::CodecsArgs;
use crate::failure::{Cannot, Failure};
use crate::output;

pub fn run(args: &CodecsArgs) -> Result<ExitCode, Failure> {
    let done = if args.json {
        output::print_json(&families().iter().map(json_of).collect::<Value>())
    } else {
        let rows = families().iter().map(|family| {
            [
                family.name.to_string(),
                family.levels_text.to_string(),
                default_name(family),
                family.summary.to_string(),
            ]
        });
        let table = output::columns(["NAME", "LEVELS", "DEFAULT", "SUMMARY"], rows, 4);
        output::print(format_args!("{table}\n'on' is lz4. Example: --compression zstd-9\n"))
    };
    done.cannot("list", "codecs")?;
    Ok(ExitCode::SUCCESS)
}

/// The algorithm and level that the bare name stands for.
fn default_name(family: &Family) -> String {
    if family.levels.is_empty() {
        family.name.to_string()
    } else {
        format!("{}-{}", family.name, family.default_level)
    }
}

fn json_of(family: &Family) -> Value {
    json!({
        "name": family.name,
        "levels": family.levels,
        "default": default_name(family),
        "summary": family.summary,
    })
}
