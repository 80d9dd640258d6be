//! `tailroute schema`: prints the configuration's JSON schema, its reference page, or an example file.

use std::process::ExitCode;

/// Print the JSON schema of the configuration file
#[derive(Debug, clap::Args)]
#[command(
    after_help = "Examples:\n  tailroute schema > tailroute.schema.json\n  tailroute schema --example > tailroute.toml"
)]
pub struct Args {
    /// Print the reference of every key as Markdown instead.
    #[arg(long, conflicts_with = "example")]
    markdown: bool,
    /// Print a complete, commented configuration file instead.
    #[arg(long)]
    example: bool,
}

/// Prints the requested document. Fails if it cannot be written.
pub fn run(args: Args) -> anyhow::Result<ExitCode> {
    let text = if args.markdown {
        config::reference()
    } else if args.example {
        config::EXAMPLE.to_owned()
    } else {
        serde_json::to_string_pretty(&config::schema())?
    };
    simulator::terminal::print(text.trim_end())?;
    Ok(ExitCode::SUCCESS)
}
