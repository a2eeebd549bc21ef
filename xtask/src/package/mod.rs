//! `cargo xtask package`: packages of Debian, made and tried.
//!
//! ```text
//!   guest      pregrant-guest-dkms: the kernel module, its Rust prebuilt, its C built by DKMS
//!   trial      a release's file system, in which a package is installed and removed
//! ```
//! Everything is below `target/package`.

mod guest;
mod trial;

use crate::linux;
use crate::rig;
use crate::workspace::Workspace;
use std::path::{Path, PathBuf};
use trial::Initial;

#[derive(Debug, Default, PartialEq, Eq)]
pub struct Selection {
    /// Releases of Debian in which the package is tried.
    releases: Vec<String>,
    initial: Initial,
}

impl Selection {
    pub fn parse(args: &[&str]) -> Result<Self, String> {
        let mut selection = Self::default();
        let mut args = args.iter();
        match args.next() {
            Some(&"guest") => {}
            _ => return Err("package wants a name: guest".into()),
        }
        while let Some(arg) = args.next() {
            if *arg == "--dracut" {
                selection.initial = Initial::Dracut;
                continue;
            }
            let name = args.next().filter(|_| *arg == "--try");
            let name = name.ok_or_else(|| format!("package guest knows no {arg:?} like that"))?;
            rig::is_release(name).map_err(|e| format!("--try takes a release: {e}"))?;
            selection.releases.push((*name).into());
        }
        Ok(selection)
    }
}

/// Builds the package for guests from Rust's part of the driver.
pub fn guest(w: &Workspace, core: &Path) -> Result<PathBuf, String> {
    guest::build(w, core)
}

/// Tries the package in a release, with the default tool for the initramfs.
pub fn play(w: &Workspace, release: &str, package: &Path) -> Result<(), String> {
    trial::play(w, release, Initial::default(), package)
}

/// Builds the package, and tries it in the selected releases.
pub fn make(w: &Workspace, selection: &Selection) -> Result<(), String> {
    let package = guest(w, &linux::front(w)?)?;
    for name in &selection.releases {
        trial::play(w, name, selection.initial, &package)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::{Initial, Selection};

    #[test]
    fn a_command_line_says_where_to_try() {
        let releases = vec!["11".to_string(), "13".into()];
        let parsed = Selection::parse(&["guest", "--try", "11", "--try", "13"]);
        assert_eq!(parsed, Ok(Selection { releases, ..Default::default() }));
        let parsed = Selection::parse(&["guest", "--try", "13-backports", "--dracut"]);
        let releases = vec!["13-backports".into()];
        assert_eq!(parsed, Ok(Selection { releases, initial: Initial::Dracut }));
        assert_eq!(Selection::parse(&["guest"]), Ok(Selection::default()));
        for wrong in
            [&[][..], &["dom0"], &["guest", "--try"], &["guest", "--try", "10"], &["guest", "now", "12"]]
        {
            assert!(Selection::parse(wrong).is_err(), "{wrong:?}");
        }
    }
}
