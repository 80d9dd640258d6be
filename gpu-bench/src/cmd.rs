//! The commands of the program.

pub mod compare;
pub mod decode;
pub mod gpu;
pub mod push;
pub mod python;
pub mod serve;
pub mod tiers;
pub mod worker;

use serde::Serialize;

/// Prints a result as JSON or as a table. A reader that has closed the pipe is no error.
fn print<T: Serialize>(found: &T, json: bool, table: impl Fn(&T) -> String) -> anyhow::Result<()> {
    let text = if json {
        serde_json::to_string_pretty(found)?
    } else {
        table(found)
    };
    Ok(crate::terminal::print(&text)?)
}
