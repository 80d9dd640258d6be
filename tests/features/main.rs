//! Never built: `Cargo.toml` says what this crate is for.

fn main() {}
