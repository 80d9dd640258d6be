//! `tailroute ctl generate`: shell completions and man pages, from the definition of the command line.

use std::path::PathBuf;

use anyhow::Context as _;
use clap_complete::Shell;

#[derive(Debug, clap::Args)]
pub(super) struct Generate {
    /// Completions for this shell, or man pages.
    kind: GeneratedKind,
    /// Write to this folder instead of standard output: with `man`, a page for each command.
    #[arg(long, value_name = "FOLDER")]
    dir: Option<PathBuf>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
enum GeneratedKind {
    Bash,
    Elvish,
    Fish,
    Powershell,
    Zsh,
    Man,
}

impl GeneratedKind {
    /// Returns the shell; `None` for man pages.
    fn shell(self) -> Option<Shell> {
        Some(match self {
            Self::Bash => Shell::Bash,
            Self::Elvish => Shell::Elvish,
            Self::Fish => Shell::Fish,
            Self::Powershell => Shell::PowerShell,
            Self::Zsh => Shell::Zsh,
            Self::Man => return None,
        })
    }
}

/// Generates from the command line `program`. Returns text for standard output. Fails if a file cannot be written.
pub(super) fn run(args: &Generate, mut program: clap::Command) -> anyhow::Result<Option<String>> {
    let Some(dir) = &args.dir else {
        let mut out = Vec::new();
        match args.kind.shell() {
            Some(shell) => clap_complete::generate(shell, &mut program, "tailroute", &mut out),
            None => clap_mangen::Man::new(program).render(&mut out)?,
        }
        return Ok(Some(String::from_utf8_lossy(&out).trim_end().to_owned()));
    };
    let failed = || format!("cannot write to {}", dir.display());
    std::fs::create_dir_all(dir).with_context(failed)?;
    match args.kind.shell() {
        Some(shell) => {
            clap_complete::generate_to(shell, &mut program, "tailroute", dir).with_context(failed)?;
        }
        None => {
            let program = program.disable_help_subcommand(true);
            clap_mangen::generate_to(program, dir).with_context(failed)?;
        }
    }
    Ok(None)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A command line with `ctl` below it, as the binary has it.
    fn program() -> clap::Command {
        let ctl = <super::super::Args as clap::Args>::augment_args(clap::Command::new("ctl"));
        clap::Command::new("tailroute").subcommand(ctl)
    }

    fn generated(kind: GeneratedKind, dir: Option<PathBuf>) -> Option<String> {
        run(&Generate { kind, dir }, program()).unwrap()
    }

    #[test]
    fn every_kind_is_printed() {
        for kind in <GeneratedKind as clap::ValueEnum>::value_variants() {
            let text = generated(*kind, None).unwrap();
            assert!(text.contains("tailroute"), "{kind:?}");
        }
        assert!(
            generated(GeneratedKind::Man, None)
                .unwrap()
                .contains(".TH tailroute 1")
        );
    }

    #[test]
    fn a_folder_gets_a_page_for_each_command() {
        let dir = std::env::temp_dir().join(format!("tailroute-man-{}", std::process::id()));
        assert_eq!(generated(GeneratedKind::Man, Some(dir.clone())), None);
        assert_eq!(generated(GeneratedKind::Bash, Some(dir.clone())), None);
        for page in [
            "tailroute.1",
            "tailroute-ctl.1",
            "tailroute-ctl-policy-set.1",
            "tailroute.bash",
        ] {
            assert!(dir.join(page).is_file(), "{page}");
        }
        std::fs::remove_dir_all(dir).unwrap();
    }
}
